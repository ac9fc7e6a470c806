#include "framework/jax.h"

#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>

#include "framework/calls.h"

namespace rr {
namespace {

xla::ErrorCode code_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgumentError:
      return xla::kInvalidArgument;
    case ErrorCode::kMismatchError:
    case ErrorCode::kNotInitializedError:
      return xla::kFailedPrecondition;
    case ErrorCode::kPeerLostError:
      return xla::kUnavailable;
    case ErrorCode::kTimeoutError:
      return xla::kDeadlineExceeded;
    case ErrorCode::kShutdownError:
      return xla::kAborted;
    case ErrorCode::kUnavailableError:
      return xla::kUnimplemented;
    default:
      return xla::kInternal;
  }
}

DType dtype_of(xla::DataType type) {
  switch (type) {
    case xla::kPred:
      return DType::kBool;
    case xla::kS8:
      return DType::kInt8;
    case xla::kS16:
      return DType::kInt16;
    case xla::kS32:
      return DType::kInt32;
    case xla::kS64:
      return DType::kInt64;
    case xla::kU8:
      return DType::kUInt8;
    case xla::kU16:
      return DType::kUInt16;
    case xla::kU32:
      return DType::kUInt32;
    case xla::kU64:
      return DType::kUInt64;
    case xla::kF16:
      return DType::kFloat16;
    case xla::kF32:
      return DType::kFloat32;
    case xla::kF64:
      return DType::kFloat64;
    case xla::kBF16:
      return DType::kBFloat16;
    default:
      throw InvalidArgumentError("XLA's element type " + std::to_string(type) + " is not supported");
  }
}

TensorView view_of(const xla::Buffer& buffer) {
  TensorView view;
  view.data = static_cast<std::byte*>(buffer.data);
  view.dtype = dtype_of(buffer.dtype);
  view.set_shape(static_cast<size_t>(buffer.rank), [&](size_t i) { return static_cast<uint64_t>(buffer.dims[i]); });
  return view;
}

void add(const void* item, std::vector<TensorView>& views) {
  const auto& buffer = *static_cast<const xla::Buffer*>(item);
  if (buffer.dtype != xla::kToken) views.push_back(view_of(buffer));
}

class Attributes {
 public:
  explicit Attributes(const xla::Attrs& attrs) : attrs_(attrs) {}

  int64_t integer(std::string_view name) const { return scalar<int64_t>(name, xla::kS64); }
  double real(std::string_view name) const { return scalar<double>(name, xla::kF64); }
  std::string text(std::string_view name) const {
    const auto& span = *static_cast<const xla::ByteSpan*>(find(name, xla::kAttrString));
    return std::string(span.ptr, span.len);
  }

 private:
  template <class T>
  T scalar(std::string_view name, xla::DataType dtype) const {
    const auto& scalar = *static_cast<const xla::Scalar*>(find(name, xla::kAttrScalar));
    if (scalar.dtype != dtype) throw InternalError("attribute " + std::string(name) + " has another type");
    T value;
    std::memcpy(&value, scalar.value, sizeof value);
    return value;
  }
  const void* find(std::string_view name, xla::AttrType type) const {
    for (int64_t i = 0; i < attrs_.size; ++i) {
      const xla::ByteSpan& known = *attrs_.names[i];
      if (std::string_view(known.ptr, known.len) == name && attrs_.types[i] == type) return attrs_.attrs[i];
    }
    throw InternalError("attribute " + std::string(name) + " is missing or has another type");
  }

  const xla::Attrs& attrs_;
};

std::optional<std::vector<uint64_t>> rows_from(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::istringstream words(text);
  std::vector<uint64_t> rows;
  for (uint64_t count = 0; words >> count;) rows.push_back(count);
  return rows;
}

// The kind and where; tensors are added by prepare().
Call call_from(Kind kind, const Attributes& attributes) {
  Call call;
  Request& request = call.request;
  request.kind = kind;
  call.process_set = static_cast<int>(attributes.integer("process_set"));
  call.name = attributes.text("name");
  const bool reduces = kind == Kind::kAllreduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
  if (reduces) {
    request.op = op_from_code(static_cast<int>(attributes.integer("op")));
    request.prescale = attributes.real("prescale");
    request.postscale = attributes.real("postscale");
  }
  if (kind == Kind::kBroadcast || kind == Kind::kReduce) request.root = static_cast<int>(attributes.integer("root"));
  if (kind == Kind::kAlltoall) {
    if (const auto rows = rows_from(attributes.text("splits")); rows.has_value()) request.splits = *rows;
  }
  return call;
}

// An all-reduce and a barrier are one call whatever they are given; of the others, one each tensor.
std::vector<Call> prepare(const Call& call, std::vector<TensorView> srcs, std::vector<TensorView> dsts) {
  const Kind kind = call.request.kind;
  std::vector<Call> calls;
  if (kind == Kind::kBarrier) {
    for (const TensorView& dst : dsts) std::memset(dst.data, 0, dst.nbytes());
    return {call};
  }
  if (srcs.size() != dsts.size()) throw InternalError(std::string(name(kind)) + ": one output for each input");
  if (kind == Kind::kAllreduce) {
    calls.push_back(call);
    calls[0].request.srcs = std::move(srcs);
    calls[0].request.dsts = std::move(dsts);
    return calls;
  }
  const bool rooted = kind == Kind::kBroadcast || kind == Kind::kReduce;
  const bool is_root = rooted && Calls::of_process().place().rank == call.request.root;
  for (size_t i = 0; i < srcs.size(); ++i) {
    TensorView src = srcs[i];
    const TensorView& dst = dsts[i];
    if (kind == Kind::kBroadcast) {
      if (is_root && src.data != dst.data && src.nbytes() != 0) std::memcpy(dst.data, src.data, src.nbytes());
      src = dst;
    }
    calls.push_back(call);
    calls.back().request.srcs = {src};
    calls.back().request.dsts = {dst};
    if (srcs.size() > 1 && !call.name.empty()) calls.back().name += "." + std::to_string(i);
  }
  return calls;
}

std::string in_words(const std::vector<uint64_t>& counts) {
  std::string words;
  for (const uint64_t count : counts) words += (words.empty() ? "" : ", ") + std::to_string(count);
  return words;
}

// received: the rows from each rank that the program was compiled for, where they are known.
void finish(const std::vector<Call>& calls, const std::vector<OperationPtr>& operations,
            const std::optional<std::vector<uint64_t>>& received) {
  for (size_t i = 0; i < calls.size(); ++i) {
    const Operation& operation = *operations[i];
    const bool has_its_rows = !received.has_value() || operation.counts == *received;
    if (operation.output != nullptr || !has_its_rows) {  // with other rows in all, it did not fit
      throw InvalidArgumentError(
          std::string(name(operation.kind)) + ": the ranks sent " + in_words(operation.counts) +
          " rows, and the program was compiled for " +
          (received.has_value() ? in_words(*received) : std::to_string(calls[i].request.dsts[0].rows()) + " in all") +
          "; shapes are fixed inside jit and grad: give all ranks the same number of rows there, and to alltoall the "
          "received_splits that belong to all ranks' splits");
    }
    // The transpose of a broadcast leaves zeros on the other ranks, whose input may have been in the same place.
    if (operation.kind == Kind::kReduce && Calls::of_process().place().rank != calls[i].request.root) {
      std::memset(calls[i].request.dsts[0].data, 0, calls[i].request.dsts[0].nbytes());
    }
  }
}

void perform(Kind kind, const xla::CallFrame& frame) {
  std::vector<TensorView> srcs;
  std::vector<TensorView> dsts;
  for (int64_t i = 0; i < frame.args.size; ++i) add(frame.args.args[i], srcs);
  for (int64_t i = 0; i < frame.rets.size; ++i) add(frame.rets.rets[i], dsts);
  const Attributes attributes(frame.attrs);
  const std::vector<Call> calls = prepare(call_from(kind, attributes), std::move(srcs), std::move(dsts));
  const Calls::InKernel in_kernel(Calls::Framework::kJax);
  // XLA takes its buffers back when this returns.
  finish(calls, Calls::of_process().run(calls, SignalWatch::look_outside_python, false),
         rows_from(attributes.text("received")));
}

// Early runtimes (0.1) take handlers of just their own version, and give no api to ask; later ones take older handlers
// too.
void tell_version(const xla::CallFrame& frame, xla::Metadata& metadata) {
  int minor = xla::kMinor;
  if (frame.api != nullptr && frame.api->api_version.major_version == xla::kMajor)
    minor = frame.api->api_version.minor_version;
  metadata.api_version = {sizeof(xla::ApiVersion), nullptr, xla::kMajor, minor};
  metadata.traits = 0;
}

xla::Metadata* asked_for_metadata(const xla::CallFrame& frame) {
  // In version 0.0 this field had no meaning.
  if (frame.api != nullptr && frame.api->api_version.minor_version == 0) return nullptr;
  for (const xla::Extension* item = frame.extension_start; item != nullptr; item = item->next) {
    if (item->type == xla::kMetadataExtension) return reinterpret_cast<const xla::MetadataExtension*>(item)->metadata;
  }
  return nullptr;
}

xla::Error* error_of(const xla::CallFrame& frame, const char* text, xla::ErrorCode code) {
  xla::ErrorCreateArgs args = {sizeof(xla::ErrorCreateArgs), nullptr, text, code};
  return frame.api->error_create(&args);
}

template <Kind kind>
xla::Error* handle(xla::CallFrame* frame) {
  if (xla::Metadata* metadata = asked_for_metadata(*frame); metadata != nullptr) {
    tell_version(*frame, *metadata);
    return nullptr;
  }
  try {
    perform(kind, *frame);
    return nullptr;
  } catch (const InterruptedCall& signal) {
    return error_of(*frame, signal.what(), xla::kCancelled);
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    return error_of(*frame, failure.text.c_str(), code_for(failure.code));
  }
}

}  // namespace

const std::vector<XlaHandler>& xla_handlers() {
  static const std::vector<XlaHandler> handlers = {
      {"ringreduce_allreduce", &handle<Kind::kAllreduce>},
      {"ringreduce_allgather", &handle<Kind::kAllgather>},
      {"ringreduce_broadcast", &handle<Kind::kBroadcast>},
      {"ringreduce_reduce", &handle<Kind::kReduce>},
      {"ringreduce_reducescatter", &handle<Kind::kReduceScatter>},
      {"ringreduce_alltoall", &handle<Kind::kAlltoall>},
      {"ringreduce_barrier", &handle<Kind::kBarrier>},
  };
  return handlers;
}

}  // namespace rr
