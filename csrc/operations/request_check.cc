#include "operations/request_check.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/errors.h"
#include "collective/plan.h"

namespace rr {

namespace {

Place place_of(const Request& request) {
  const TensorView* first = !request.srcs.empty()   ? &request.srcs[0]
                            : !request.dsts.empty() ? &request.dsts[0]
                                                    : nullptr;
  return first != nullptr ? first->place : Place::kHost;
}

// Throws InvalidArgumentError where a tensor's output shares memory with another tensor's input or output: who writes
// there first would depend on time.
void check_apart(const Request& request) {
  struct Stretch {
    const std::byte* begin;
    const std::byte* end;
    size_t tensor;
    bool is_output;
  };
  std::vector<Stretch> stretches;
  stretches.reserve(2 * request.dsts.size());
  for (size_t i = 0; i < request.dsts.size(); ++i) {
    const TensorView& src = request.srcs[i];
    const TensorView& dst = request.dsts[i];
    if (dst.nbytes() == 0) continue;
    stretches.push_back({dst.data, dst.data + dst.nbytes(), i, true});
    if (src.data != dst.data) stretches.push_back({src.data, src.data + src.nbytes(), i, false});
  }
  std::sort(stretches.begin(), stretches.end(),
            [](const Stretch& a, const Stretch& b) { return std::less<>()(a.begin, b.begin); });
  const Stretch* output = nullptr;  // of those that begin before, the one that ends last
  const Stretch* input = nullptr;
  const auto reaches = [](const Stretch* one, const Stretch& next) {
    return one != nullptr && std::less<>()(next.begin, one->end);
  };
  for (const Stretch& next : stretches) {
    const Stretch* const other =
        reaches(output, next) ? output : (next.is_output && reaches(input, next) ? input : nullptr);
    if (other != nullptr) {
      throw InvalidArgumentError("grouped " + std::string(name(request.kind)) + ": tensors " +
                                 std::to_string(std::min(other->tensor, next.tensor)) + " and " +
                                 std::to_string(std::max(other->tensor, next.tensor)) +
                                 " share memory that the operation overwrites; pass each tensor once, or copies");
    }
    const Stretch*& longest = next.is_output ? output : input;
    if (longest == nullptr || std::less<>()(longest->end, next.end)) longest = &next;
  }
}

}  // namespace

Signature sign(const Request& request) {
  const TensorView* shown =
      !request.srcs.empty() ? &request.srcs[0] : (!request.dsts.empty() ? &request.dsts[0] : nullptr);
  // What must agree for a broadcast or scatter is what every rank receives.
  if (request.kind == Kind::kScatter || request.kind == Kind::kBroadcast) shown = &request.dsts[0];
  Signature s;
  s.place = place_of(request);
  s.kind = request.kind;
  s.op = request.op;
  s.root = request.root;
  s.prescale = request.prescale;
  s.postscale = request.postscale;
  s.codec = request.codec;
  s.is_async = request.is_async ? 1 : 0;
  if (shown == nullptr) return s;
  s.dtype = shown->dtype;
  s.ndim = shown->ndim;
  s.tensors = static_cast<uint32_t>(std::max<size_t>(1, request.srcs.size()));
  std::copy(std::begin(shown->dims), std::end(shown->dims), s.dims);
  s.nbytes = shown->nbytes();
  if (s.tensors > 1) {
    uint64_t hash = 0;
    s.nbytes = 0;
    for (const TensorView& tensor : request.srcs) {
      Signature one;
      one.dtype = tensor.dtype;
      one.ndim = tensor.ndim;
      std::copy(std::begin(tensor.dims), std::end(tensor.dims), one.dims);
      hash = hash * 31 + digest(one);
      s.nbytes += tensor.nbytes();
    }
    s.dims[0] = hash;
  }
  return s;
}

void check_request(const Request& request, int rank, int size, bool has_device) {
  if (request.name != nullptr && request.name->find('\0') != std::string::npos) {  // texts of errors end there
    throw InvalidArgumentError(std::string(name(request.kind)) + " '" + request.name->c_str() +
                               "': the name goes on after a NUL");
  }
  const Place place = place_of(request);
  for (const auto* tensors : {&request.srcs, &request.dsts}) {
    for (const TensorView& tensor : *tensors) {
      if (tensor.place != place) throw InternalError("Tensors in list must be on same device.");
    }
  }
  if (place == Place::kDevice && !has_device) {
    throw UnavailableError(std::string(name(request.kind)) + " of GPU memory, but this rank works on no GPU yet");
  }
  if (request.kind == Kind::kAllreduce || request.kind == Kind::kReduceScatter || request.kind == Kind::kReduce) {
    if (request.srcs.empty() || request.srcs.size() != request.dsts.size()) {
      throw InvalidArgumentError(std::string(name(request.kind)) +
                                 " takes at least one tensor and one output for each");
    }
    if (request.kind != Kind::kAllreduce && request.srcs.size() > 1) {
      throw InvalidArgumentError(std::string(name(request.kind)) + " takes one tensor, not " +
                                 std::to_string(request.srcs.size()));
    }
    for (size_t i = 0; i < request.srcs.size(); ++i) {
      const Reduction reduction{request.srcs[i].dtype, request.op, request.prescale, request.postscale, size};
      check(reduction);
      check(request.codec, reduction);
      if (request.srcs[i].dtype != request.dsts[i].dtype)
        throw InvalidArgumentError("input and output differ in dtype");
      if (request.kind != Kind::kReduceScatter && request.srcs[i].nbytes() != request.dsts[i].nbytes()) {
        throw InvalidArgumentError("input and output differ in size");
      }
    }
    if (request.srcs.size() > 1) check_apart(request);
  }
  if (request.kind == Kind::kReduceScatter) {
    const TensorView& src = request.srcs[0];
    if (src.ndim == 0) throw InvalidArgumentError("Reducescatter does not support scalar inputs");
    if (request.op != ReduceOp::kSum && request.op != ReduceOp::kAverage) {
      throw InvalidArgumentError("Reducescatter currently only supports AVERAGE and SUM.");
    }
    const size_t mine = segment(src.rows(), size, rank).count() * src.row_nbytes();
    if (request.dsts[0].nbytes() != mine)
      throw InvalidArgumentError("reducescatter: the output must hold this rank's rows");
  }
  if (is_ragged(request.kind) && request.srcs[0].ndim == 0) {
    throw InvalidArgumentError("Process-set rank " + std::to_string(rank) + " tried to " + upper_name(request.kind) +
                               " a rank-zero tensor.");
  }
  if (!request.expected.empty() && (!is_ragged(request.kind) || request.expected.size() != static_cast<size_t>(size))) {
    throw InvalidArgumentError(std::string(name(request.kind)) + ": " + std::to_string(request.expected.size()) +
                               " expected numbers of rows for " + std::to_string(size) +
                               " ranks; an allgather, alltoall or gather takes one for each");
  }
  const bool rooted = request.kind == Kind::kBroadcast || request.kind == Kind::kReduce ||
                      request.kind == Kind::kGather || request.kind == Kind::kScatter;
  if (rooted && (request.root < 0 || request.root >= size)) {
    throw InvalidArgumentError(std::string(name(request.kind)) + " received invalid root rank " +
                               std::to_string(request.root) + " for provided process set");
  }
  if (request.kind == Kind::kScatter && request.root == rank &&
      (request.srcs.empty() || request.srcs[0].nbytes() != request.dsts[0].nbytes() * static_cast<size_t>(size))) {
    throw InvalidArgumentError("scatter: the root's input must hold one output for each rank");
  }
  if (request.kind != Kind::kAlltoall) return;
  if (size > kAlltoallRanksMost) {
    throw UnavailableError("an alltoall takes a group of at most " + std::to_string(kAlltoallRanksMost) +
                           " ranks, and this one has " + std::to_string(size) + "; use a process set of fewer");
  }
  const uint64_t rows = request.srcs[0].rows();
  if (request.splits.empty()) {
    if (rows % static_cast<uint64_t>(size) == 0) return;
    throw InvalidArgumentError(
        "splits not provided, but first dimension of tensor is not an even multiple of the number of workers.");
  }
  if (request.splits.size() != static_cast<size_t>(size)) {
    throw InvalidArgumentError("Number of entries in splits does not equal number of workers.");
  }
  uint64_t sum = 0;
  for (const uint64_t split : request.splits) {
    if (split > rows - sum) {
      throw InvalidArgumentError("Sum of splits entries is greater than the first dimension of tensor.");
    }
    sum += split;
  }
}

}  // namespace rr
