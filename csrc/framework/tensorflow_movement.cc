// Kernels that move data. What an operation allocates becomes the output as it is.

#include <numeric>

#include "framework/tensorflow_kernel.h"

namespace rr {
namespace {

std::vector<int64_t> counts_of(RrOutcome* outcome, size_t call) {
  size_t length = 0;
  const uint64_t* counts = core().counts(outcome, call, &length);
  return {counts, counts + length};
}

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

}  // namespace

// Outputs: the gathered tensors, and how many rows of each (first dimension) came from each rank.
void allgather(Run& run) {
  const auto count = static_cast<size_t>(run.tensors());
  const std::vector<std::string> names = numbered(run.node().name, count);
  std::vector<Input> inputs;
  std::vector<RrTensor> srcs;
  std::vector<RrCall> calls;
  for (size_t i = 0; i < count; ++i) inputs.push_back(run.input(static_cast<int>(i)));
  for (const Input& input : inputs) srcs.push_back(view_of(input.type, input.shape, input.data));
  for (size_t i = 0; i < count; ++i) {
    RrCall call = call_of(Kind::kAllgather, run.node(), names[i].c_str());
    call.srcs = &srcs[i];
    call.srcs_count = 1;
    calls.push_back(call);
  }
  const OutcomePtr outcome = run_calls(calls);
  std::vector<int64_t> all_counts;
  for (size_t i = 0; i < count; ++i) {
    const std::vector<int64_t> counts = counts_of(outcome.get(), i);
    all_counts.insert(all_counts.end(), counts.begin(), counts.end());
    Shape shape = inputs[i].shape;
    shape.dims[0] = sum(counts);
    run.give_output(static_cast<int>(i), inputs[i].type, shape, outcome.get(), i);
  }
  const auto ranks = static_cast<int64_t>(count == 0 ? 0 : all_counts.size() / count);
  run.give_int32(static_cast<int>(count), {{static_cast<int64_t>(count), ranks}}, all_counts);
}

// The root's outputs are its inputs; the others' inputs are overwritten where nobody else wants them.
void broadcast(Run& run) {
  const auto count = static_cast<size_t>(run.tensors());
  const bool is_root = ask(kRrRank, 0) == run.node().root_rank;
  const std::vector<std::string> names = numbered(run.node().name, count);
  std::vector<Input> inputs;
  std::vector<RrTensor> tensors;
  std::vector<RrCall> calls;
  for (size_t i = 0; i < count; ++i) inputs.push_back(run.input(static_cast<int>(i)));
  for (size_t i = 0; i < count; ++i) {
    void* data = is_root ? inputs[i].data : run.output_over_input(static_cast<int>(i), inputs[i].shape);
    tensors.push_back(view_of(inputs[i].type, inputs[i].shape, data));
  }
  for (size_t i = 0; i < count; ++i) {
    RrCall call = call_of(Kind::kBroadcast, run.node(), names[i].c_str());
    call.root_rank = run.node().root_rank;
    call.srcs = call.dsts = &tensors[i];
    call.srcs_count = call.dsts_count = 1;
    calls.push_back(call);
  }
  if (count != 0) run_calls(calls);
  for (size_t i = 0; i < count && is_root; ++i) run.pass_on(static_cast<int>(i));
}

// Inputs: the tensor, and the rows for each rank (int64). Without them, which the shape [] says, equal parts.
void alltoall(Run& run) {
  const Input input = run.input(0);
  const Input splits = run.input(1);
  const RrTensor src = view_of(input.type, input.shape, input.data);
  RrCall call = call_of(Kind::kAlltoall, run.node(), run.node().name.c_str());
  call.srcs = &src;
  call.srcs_count = 1;
  if (splits.shape.ndim() > 1) {
    throw KernelError(TF_INVALID_ARGUMENT, "InvalidArgumentError: alltoall expects a 1D splits tensor");
  }
  if (splits.shape.ndim() == 1) {
    call.splits = static_cast<const int64_t*>(splits.data);
    call.splits_count = splits.shape.dims[0];
  }
  const OutcomePtr outcome = run_calls({call});
  const std::vector<int64_t> counts = counts_of(outcome.get(), 0);
  Shape shape = input.shape;
  shape.dims[0] = sum(counts);
  run.give_output(0, input.type, shape, outcome.get(), 0);
  run.give_int32(1, {{static_cast<int64_t>(counts.size())}}, counts);
}

}  // namespace rr
