// What is asked of NCCL for each kind of operation.

#include <algorithm>

#include "collective/gpu/nccl_path.h"

namespace rr {
namespace {

// Smaller tensors of a bucket are packed into one, if there are several. Packing moves 4 bytes of device memory per
// byte (0.35 us for 256 KiB at 3 TB/s) and costs two launches a bucket; a call more in a group costs NCCL about a
// microsecond to enqueue and to schedule, and tensors shorter than what fills its channels cost bandwidth besides.
constexpr size_t kPackedNbytes = size_t{256} << 10;
constexpr size_t kPackedLeast = 2;
constexpr size_t kScratchAlign = 256;

NcclCall reduces(NcclCall::Kind kind, const std::byte* src, std::byte* dst, size_t count, const Reduction& reduction,
                 int peer = 0) {
  return {kind, src, dst, count, reduction, peer};
}

NcclCall moves(NcclCall::Kind kind, const std::byte* src, std::byte* dst, size_t nbytes, int peer = 0) {
  return {kind, src, dst, nbytes, {}, peer};
}

bool is_packed(const Piece& piece, DType dtype) {
  return piece.count != 0 && piece.count * itemsize(dtype) < kPackedNbytes;
}

// All ranks' blocks of one size, end to end at every rank.
bool is_even_allgather(const ExchangeJob& job, int size) {
  const bool all_send = std::all_of(job.sources.begin(), job.sources.end(), [](bool is) { return is; });
  if (job.blocks != 1 || !all_send || !job.takers.empty() || job.incoming.size() != static_cast<size_t>(size)) {
    return false;
  }
  const ExchangeJob::Incoming& first = job.incoming.front();
  for (size_t i = 0; i < job.incoming.size(); ++i) {
    const ExchangeJob::Incoming& in = job.incoming[i];
    if (in.member != static_cast<int>(i) || in.nbytes != first.nbytes || in.dst != first.dst + i * first.nbytes) {
      return false;
    }
  }
  return true;
}

// One rank's block to everybody.
bool is_broadcast(const ExchangeJob& job) {
  if (job.blocks != 1 || job.takers.empty()) return false;
  for (size_t r = 0; r < job.takers.size(); ++r) {
    if (job.takers[r] == job.sources[r]) return false;
  }
  return std::count(job.sources.begin(), job.sources.end(), true) == 1;
}

}  // namespace

NcclJob nccl_allreduce(const std::vector<std::pair<Reduction, std::vector<Piece>>>& parts, const Scratch& scratch) {
  NcclJob job;
  struct Packed {
    size_t begin = 0;  // in the scratch
    size_t count = 0;
  };
  std::vector<Packed> packed;
  size_t scratch_nbytes = 0;
  for (const auto& [reduction, pieces] : parts) {
    const size_t item = itemsize(reduction.dtype);
    Packed one = {scratch_nbytes, 0};
    size_t small = 0;
    for (const Piece& piece : pieces) {
      if (!is_packed(piece, reduction.dtype)) continue;
      ++small;
      one.count += piece.count;
    }
    if (small < kPackedLeast) one.count = 0;
    scratch_nbytes = round_up(scratch_nbytes + one.count * item, kScratchAlign);
    packed.push_back(one);
  }
  if (scratch_nbytes != 0) job.scratch = scratch(scratch_nbytes);
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto& [reduction, pieces] = parts[p];
    NcclJob::Move in = {reduction.dtype, {}};
    NcclJob::Move out = {reduction.dtype, {}};
    std::byte* const begin = packed[p].count == 0 ? nullptr : job.scratch.get() + packed[p].begin;
    std::byte* next = begin;
    for (const Piece& piece : pieces) {
      if (piece.count == 0) continue;
      if (packed[p].count == 0 || !is_packed(piece, reduction.dtype)) {
        job.calls.push_back(reduces(NcclCall::Kind::kAllReduce, piece.src, piece.dst, piece.count, reduction));
        continue;
      }
      in.parts.push_back({piece.src, next, piece.count});
      out.parts.push_back({next, piece.dst, piece.count});
      next += piece.count * itemsize(reduction.dtype);
    }
    if (in.parts.empty()) continue;
    job.calls.push_back(reduces(NcclCall::Kind::kAllReduce, begin, begin, packed[p].count, reduction));
    job.before.push_back(std::move(in));
    job.after.push_back(std::move(out));
  }
  return job;
}

NcclJob nccl_reduce(const ReduceJob& job, int me) {
  NcclJob plan;
  const Piece& piece = job.pieces.front();
  if (job.shape == ReduceShape::kReduce) {
    if (piece.count == 0) return plan;
    plan.calls.push_back(reduces(NcclCall::Kind::kReduce, piece.src, piece.dst, piece.count, job.reduction, job.root));
    return plan;
  }
  const size_t first = job.owned.front().count();
  const bool even = std::all_of(job.owned.begin(), job.owned.end(), [&](const Range& r) { return r.count() == first; });
  if (even) {
    if (first == 0) return plan;
    plan.calls.push_back(reduces(NcclCall::Kind::kReduceScatter, piece.src, piece.dst, first, job.reduction));
    return plan;
  }
  const size_t item = itemsize(job.reduction.dtype);
  for (size_t r = 0; r < job.owned.size(); ++r) {
    const Range& range = job.owned[r];
    if (range.empty()) continue;
    std::byte* const dst = static_cast<int>(r) == me ? piece.dst : nullptr;
    plan.calls.push_back(reduces(NcclCall::Kind::kReduce, piece.src + range.begin * item, dst, range.count(),
                                 job.reduction, static_cast<int>(r)));
  }
  return plan;
}

NcclJob nccl_exchange(const ExchangeJob& job, int me, int size) {
  NcclJob plan;
  if (is_broadcast(job)) {
    const auto root = static_cast<int>(std::find(job.sources.begin(), job.sources.end(), true) - job.sources.begin());
    if (job.largest_nbytes == 0) return plan;
    const std::byte* const src = root == me ? job.outgoing.front().src : nullptr;
    // in place at the root, whose result is its own input
    std::byte* const dst = root == me ? const_cast<std::byte*>(src) : job.incoming.front().dst;
    plan.calls.push_back(moves(NcclCall::Kind::kBroadcast, root == me ? src : dst, dst, job.largest_nbytes, root));
    return plan;
  }
  if (is_even_allgather(job, size)) {
    const ExchangeJob::Incoming& first = job.incoming.front();
    if (first.nbytes == 0) return plan;
    plan.calls.push_back(moves(NcclCall::Kind::kAllGather, job.outgoing.front().src, first.dst, first.nbytes));
    return plan;
  }
  const auto takes = [&](int r) { return job.takers.empty() || job.takers[static_cast<size_t>(r)]; };
  for (int r = 0; r < size && !job.outgoing.empty(); ++r) {
    const auto& block = job.outgoing[job.blocks == 1 ? 0 : static_cast<size_t>(r)];
    if (r == me || !takes(r) || block.nbytes == 0) continue;
    plan.calls.push_back(moves(NcclCall::Kind::kSend, block.src, nullptr, block.nbytes, r));
  }
  for (const ExchangeJob::Incoming& in : job.incoming) {
    if (in.nbytes == 0) continue;
    if (in.member != me) {
      plan.calls.push_back(moves(NcclCall::Kind::kReceive, nullptr, in.dst, in.nbytes, in.member));
      continue;
    }
    const std::byte* const src = job.outgoing[static_cast<size_t>(in.block)].src;
    if (src != in.dst) plan.before.push_back({DType::kUInt8, {{src, in.dst, in.nbytes}}});
  }
  return plan;
}

}  // namespace rr
