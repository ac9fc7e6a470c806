// A kernel of ours as TensorFlow's C API has it: settings from the node, tensors in and out, errors.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/dtype.h"
#include "framework/table.h"
#include "framework/tensorflow_abi.h"
#include "negotiation/segment/signature.h"

namespace rr {

struct DeleteStatus {
  void operator()(TF_Status* status) const { tf.TF_DeleteStatus(status); }
};
struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { tf.TF_DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<TF_Tensor, DeleteTensor>;

// Ends a kernel: what TensorFlow reports instead of a result.
struct KernelError : std::runtime_error {
  TF_Code code;
  KernelError(TF_Code of, const std::string& text) : std::runtime_error(text), code(of) {}
};

// A signal has ended the kernel's wait. The outcome is to be kept, with all tensors.
struct InterruptedKernel : KernelError {
  RrOutcome* outcome;
  InterruptedKernel(const std::string& text, RrOutcome* of) : KernelError(TF_CANCELLED, text), outcome(of) {}
};

// A status that raises what went wrong.
class Checked {
 public:
  Checked() : status_(tf.TF_NewStatus()) {}
  operator TF_Status*() const { return status_.get(); }
  void raise() const {
    const TF_Code code = tf.TF_GetCode(status_.get());
    if (code != TF_OK) throw KernelError(code, tf.TF_Message(status_.get()));
  }

 private:
  std::unique_ptr<TF_Status, DeleteStatus> status_;
};

// What the node says; each op has those of the attributes that mean something to it.
struct Node {
  std::string name;  // of the tensor; "" = none
  int32_t process_set = 0;
  int32_t op = 0;
  int32_t root_rank = -1;
  double prescale = 1.0;
  double postscale = 1.0;
};

struct Shape {
  std::vector<int64_t> dims;
  int ndim() const { return static_cast<int>(dims.size()); }
};

// An input of the kernel. TensorFlow keeps its memory until the kernel returns; holding no reference ourselves, we may
// be given that memory for an output.
struct Input {
  TF_DataType type;
  Shape shape;
  void* data;
};

// One run of a kernel.
class Run {
 public:
  Run(TF_OpKernelContext* context, const Node& node) : context_(context), node_(node) {}

  const Node& node() const { return node_; }
  int tensors() const { return tf.TF_NumInputs(context_) - 1; }  // the last input is the token
  Input input(int index) const;
  // Output i in the memory of input i, if nobody else wants that; else in memory of its own. The address.
  void* output_over_input(int index, const Shape& shape);
  void* allocate_output(int index, TF_DataType type, const Shape& shape);
  // An output that is the input, unchanged; nothing is copied.
  void pass_on(int index) const;
  // An output in memory that an operation has allocated.
  void give_output(int index, TF_DataType type, const Shape& shape, RrOutcome* outcome, size_t call);
  // Raises for a value that int32 does not hold; they are numbers of rows.
  void give_int32(int index, const Shape& shape, const std::vector<int64_t>& values);
  // After a wait that a signal has ended: the engine may still use the memory of inputs and outputs.
  void keep_for_ever(RrOutcome* outcome);

 private:
  TF_OpKernelContext* context_;
  const Node& node_;
  std::vector<TensorPtr> outputs_;
};

size_t nbytes_of(TF_DataType type, const Shape& shape);

// The core's view of a tensor; refers to the shape. Raises for a type that the core does not have.
RrTensor view_of(TF_DataType type, const Shape& shape, void* data);

struct ReleaseOutcome {
  void operator()(RrOutcome* outcome) const;
};
using OutcomePtr = std::unique_ptr<RrOutcome, ReleaseOutcome>;

// The calls of the core, which Python hands over. Raise what the core reports.
const RrTable& core();
OutcomePtr run_calls(const std::vector<RrCall>& calls);
int64_t ask(RrQuestion question, int32_t process_set);
// A call of this kind with the node's settings; tensors are for the caller to add.
RrCall call_of(Kind kind, const Node& node, const char* name);
// Names of several tensors' operations: "name_1of3"; "" as it is.
std::vector<std::string> numbered(const std::string& name, size_t count);

// tensorflow_reduce.cc, tensorflow_movement.cc: what the kernels do.
void allreduce(Run& run);
void reducescatter(Run& run);
void allgather(Run& run);
void broadcast(Run& run);
void alltoall(Run& run);

}  // namespace rr
