#include "framework/tensorflow_kernel.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "base/errors.h"
#include "base/never_destroyed.h"

namespace rr {
namespace {

std::atomic<const RrTable*> table{nullptr};

int dtype_code(TF_DataType type) {
  switch (type) {
    case TF_HALF:
      return static_cast<int>(DType::kFloat16);
    case TF_BFLOAT16:
      return static_cast<int>(DType::kBFloat16);
    case TF_FLOAT:
      return static_cast<int>(DType::kFloat32);
    case TF_DOUBLE:
      return static_cast<int>(DType::kFloat64);
    case TF_INT8:
      return static_cast<int>(DType::kInt8);
    case TF_INT16:
      return static_cast<int>(DType::kInt16);
    case TF_INT32:
      return static_cast<int>(DType::kInt32);
    case TF_INT64:
      return static_cast<int>(DType::kInt64);
    case TF_UINT8:
      return static_cast<int>(DType::kUInt8);
    case TF_UINT16:
      return static_cast<int>(DType::kUInt16);
    case TF_UINT32:
      return static_cast<int>(DType::kUInt32);
    case TF_UINT64:
      return static_cast<int>(DType::kUInt64);
    case TF_BOOL:
      return static_cast<int>(DType::kBool);
  }
  throw KernelError(TF_INVALID_ARGUMENT, "InvalidArgumentError: tensors of type number " +
                                             std::to_string(static_cast<int>(type)) + " are not supported");
}

TF_Code code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNone:
      return TF_OK;
    case ErrorCode::kInvalidArgumentError:
      return TF_INVALID_ARGUMENT;
    case ErrorCode::kMismatchError:  // as in Horovod
    case ErrorCode::kNotInitializedError:
      return TF_FAILED_PRECONDITION;
    case ErrorCode::kTimeoutError:
      return TF_DEADLINE_EXCEEDED;
    // Not TF_UNAVAILABLE or TF_ABORTED: a MonitoredTrainingSession takes these for a preempted server, and makes a new
    // session and begins anew, for ever and without a word.
    case ErrorCode::kPeerLostError:
    case ErrorCode::kShutdownError:
      return TF_UNKNOWN;
    case ErrorCode::kUnavailableError:
      return TF_UNIMPLEMENTED;
    case ErrorCode::kInternalError:
      return TF_INTERNAL;
    case ErrorCode::kError:
      return TF_UNKNOWN;
  }
  return TF_UNKNOWN;
}

OutcomePtr checked(RrOutcome* outcome) {
  if (outcome == nullptr) throw KernelError(TF_RESOURCE_EXHAUSTED, "Error: out of memory");
  OutcomePtr owned(outcome);
  if (core().error(outcome) == kRrInterrupted) throw InterruptedKernel(core().text(outcome), owned.release());
  const auto code = static_cast<ErrorCode>(core().error(outcome));
  if (code != ErrorCode::kNone) throw KernelError(code_of(code), core().text(outcome));
  return owned;
}

extern "C" void free_output(void* data, size_t, void*) { core().free_output(data); }

}  // namespace

// Called by Python, once, after TensorFlow has loaded this object: the table's address. False: it is of another build.
extern "C" __attribute__((visibility("default"))) bool ringreduce_connect(const RrTable* calls) {
  if (calls->version != kRrTableVersion || calls->nbytes != sizeof(RrTable)) return false;
  table.store(calls);
  return true;
}

void ReleaseOutcome::operator()(RrOutcome* outcome) const { core().release(outcome); }

const RrTable& core() {
  const RrTable* calls = table.load();
  if (calls == nullptr) {
    throw KernelError(TF_FAILED_PRECONDITION,
                      "NotInitializedError: ringreduce's operators were loaded without ringreduce; "
                      "import ringreduce.tensorflow");
  }
  return *calls;
}

OutcomePtr run_calls(const std::vector<RrCall>& calls) {
  return checked(core().run(core().state, calls.data(), calls.size()));
}

int64_t ask(RrQuestion question, int32_t process_set) {
  return core().answer(checked(core().ask(core().state, question, process_set)).get());
}

RrCall call_of(Kind kind, const Node& node, const char* name) {
  RrCall call = {};
  call.kind = static_cast<int32_t>(kind);
  call.process_set = node.process_set;
  call.op = node.op;
  call.root_rank = -1;
  call.prescale = node.prescale;
  call.postscale = node.postscale;
  call.name = name;
  call.splits_count = -1;
  return call;
}

std::vector<std::string> numbered(const std::string& name, size_t count) {
  std::vector<std::string> names(count, name);
  if (name.empty() || count == 1) return names;
  for (size_t i = 0; i < count; ++i) names[i] += "_" + std::to_string(i + 1) + "of" + std::to_string(count);
  return names;
}

size_t nbytes_of(TF_DataType type, const Shape& shape) {
  size_t nbytes = itemsize(static_cast<DType>(dtype_code(type)));
  for (const int64_t dim : shape.dims) nbytes *= static_cast<size_t>(dim);
  return nbytes;
}

RrTensor view_of(TF_DataType type, const Shape& shape, void* data) {
  return {data, shape.dims.data(), shape.ndim(), dtype_code(type)};
}

Input Run::input(int index) const {
  const Checked status;
  TF_Tensor* got = nullptr;
  tf.TF_GetInput(context_, index, &got, status);
  status.raise();
  const TensorPtr tensor(got);
  Input input = {tf.TF_TensorType(got), {}, tf.TF_TensorData(got)};
  for (int i = 0; i < tf.TF_NumDims(got); ++i) input.shape.dims.push_back(tf.TF_Dim(got, i));
  return input;
}

void* Run::output_over_input(int index, const Shape& shape) {
  const Checked status;
  int forwarded = -1;
  TensorPtr tensor(tf.TF_ForwardInputOrAllocateOutput(context_, &index, 1, index, shape.dims.data(), shape.ndim(),
                                                      &forwarded, status));
  status.raise();
  return tf.TF_TensorData(outputs_.emplace_back(std::move(tensor)).get());
}

void* Run::allocate_output(int index, TF_DataType type, const Shape& shape) {
  const Checked status;
  TensorPtr tensor(
      tf.TF_AllocateOutput(context_, index, type, shape.dims.data(), shape.ndim(), nbytes_of(type, shape), status));
  status.raise();
  return tf.TF_TensorData(outputs_.emplace_back(std::move(tensor)).get());
}

void Run::keep_for_ever(RrOutcome* outcome) {
  struct Kept {
    RrOutcome* outcome;
    std::vector<TensorPtr> tensors;
  };
  auto& kept = never_destroyed<Kept>(Kept{outcome, std::move(outputs_)});
  for (int i = 0; i < tensors(); ++i) {
    const Checked status;
    TF_Tensor* got = nullptr;
    tf.TF_GetInput(context_, i, &got, status);
    if (tf.TF_GetCode(status) == TF_OK) kept.tensors.emplace_back(got);
  }
}

void Run::pass_on(int index) const {
  const Checked status;
  TF_Tensor* got = nullptr;
  tf.TF_GetInput(context_, index, &got, status);
  status.raise();
  const TensorPtr tensor(got);
  tf.TF_SetOutput(context_, index, got, status);
  status.raise();
}

void Run::give_output(int index, TF_DataType type, const Shape& shape, RrOutcome* outcome, size_t call) {
  size_t nbytes = 0;
  void* data = core().take_output(outcome, call, &nbytes);
  if (data == nullptr) {  // nothing was received, hence nothing allocated
    allocate_output(index, type, shape);
    return;
  }
  const Checked status;
  const TensorPtr tensor(
      tf.TF_NewTensor(type, shape.dims.data(), shape.ndim(), data, nbytes_of(type, shape), free_output, nullptr));
  tf.TF_SetOutput(context_, index, tensor.get(), status);
  status.raise();
}

void Run::give_int32(int index, const Shape& shape, const std::vector<int64_t>& values) {
  const auto most = std::max_element(values.begin(), values.end());
  if (most != values.end() && *most > std::numeric_limits<int32_t>::max()) {
    throw KernelError(TF_INVALID_ARGUMENT, "InvalidArgumentError: " + std::to_string(*most) +
                                               " rows have come from one rank. TensorFlow's operators count rows in "
                                               "int32, which does not hold that number: give them fewer rows (2^31 - 1 "
                                               "at most from each rank), with tf.reshape or in several calls");
  }
  auto* data = static_cast<int32_t*>(allocate_output(index, TF_INT32, shape));
  std::transform(values.begin(), values.end(), data, [](int64_t value) { return static_cast<int32_t>(value); });
}

}  // namespace rr
