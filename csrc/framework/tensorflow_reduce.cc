// Kernels that reduce. An all-reduce works in the memory of its input wherever nobody else wants that.

#include "framework/tensorflow_kernel.h"

namespace rr {

void allreduce(Run& run) {
  const int count = run.tensors();
  if (count == 0) return;
  std::vector<Input> inputs;
  for (int i = 0; i < count; ++i) inputs.push_back(run.input(i));
  std::vector<RrTensor> srcs;
  std::vector<RrTensor> dsts;
  for (int i = 0; i < count; ++i) {
    const Input& input = inputs[static_cast<size_t>(i)];
    srcs.push_back(view_of(input.type, input.shape, input.data));
    dsts.push_back(view_of(input.type, input.shape, run.output_over_input(i, input.shape)));
  }
  RrCall call = call_of(Kind::kAllreduce, run.node(), run.node().name.c_str());
  call.srcs = srcs.data();
  call.dsts = dsts.data();
  call.srcs_count = call.dsts_count = srcs.size();
  run_calls({call});
}

// Each tensor is an operation of its own; all are under way together.
void reducescatter(Run& run) {
  const int64_t size = ask(kRrSize, run.node().process_set);
  const int64_t rank = ask(kRrGroupRank, run.node().process_set);
  const auto count = static_cast<size_t>(run.tensors());
  const std::vector<std::string> names = numbered(run.node().name, count);
  std::vector<Input> inputs;
  for (size_t i = 0; i < count; ++i) inputs.push_back(run.input(static_cast<int>(i)));
  std::vector<Shape> shapes(count);
  std::vector<RrTensor> srcs(count);
  std::vector<RrTensor> dsts(count);
  std::vector<RrCall> calls;
  for (size_t i = 0; i < count; ++i) {
    const Input& input = inputs[i];
    if (input.shape.dims.empty()) {
      throw KernelError(TF_INVALID_ARGUMENT, "InvalidArgumentError: Reducescatter does not support scalar inputs");
    }
    shapes[i] = input.shape;
    const int64_t rows = input.shape.dims[0];
    shapes[i].dims[0] = rows / size + (rank < rows % size ? 1 : 0);
    srcs[i] = view_of(input.type, input.shape, input.data);
    dsts[i] = view_of(input.type, shapes[i], run.allocate_output(static_cast<int>(i), input.type, shapes[i]));
    RrCall call = call_of(Kind::kReduceScatter, run.node(), names[i].c_str());
    call.srcs = &srcs[i];
    call.dsts = &dsts[i];
    call.srcs_count = call.dsts_count = 1;
    calls.push_back(call);
  }
  if (count != 0) run_calls(calls);
}

}  // namespace rr
