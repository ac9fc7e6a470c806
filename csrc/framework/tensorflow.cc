// ringreduce/_tensorflow.so: registers our ops and their kernels with the TensorFlow that loads it.
//
// All ops are stateful, so TensorFlow neither folds, merges nor drops them, and a tf.function runs them in the order in
// which they were written. They block: an asynchronous kernel that ends later crashes in graphs.

#include <dlfcn.h>

#include <locale>
#include <memory>
#include <sstream>

#include "framework/tensorflow_kernel.h"

namespace rr {

TensorFlow tf;

namespace {

std::string problem;  // why there are no ops; "" = there are

constexpr const char* kXla =
    "UnavailableError: ringreduce's operators cannot be compiled by XLA: set jit_compile=False where this function is "
    "made, in tf.function(jit_compile=False) or model.compile(jit_compile=False); Keras' \"auto\" may mean True on a "
    "GPU. The functions that this one calls may be compiled, if they communicate nothing";

// --- creation: what the node says -----------------------------------------------------------------------------------

std::string string_attr(TF_OpKernelConstruction* construction, const char* name) {
  const Checked status;
  int32_t list_size = 0;
  int32_t length = 0;
  tf.TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &length, status);
  status.raise();
  std::string value(static_cast<size_t>(length), '\0');
  tf.TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status);
  status.raise();
  return value;
}

int32_t int_attr(TF_OpKernelConstruction* construction, const char* name) {
  const Checked status;
  int64_t value = 0;
  tf.TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  status.raise();
  return static_cast<int32_t>(value);
}

// A number as text: attributes of the type float have 32 bits, and factors of float64 tensors need 64.
double factor_attr(TF_OpKernelConstruction* construction, const char* name) {
  std::istringstream text(string_attr(construction, name));
  text.imbue(std::locale::classic());
  double value = 0;
  if (!(text >> value)) {
    throw KernelError(TF_INVALID_ARGUMENT, std::string("InvalidArgumentError: ") + name + " is not a number");
  }
  return value;
}

constexpr unsigned kSet = 1;      // process_set_id
constexpr unsigned kNamed = 2;    // tensor_name
constexpr unsigned kReduces = 4;  // reduce_op, prescale_factor, postscale_factor
constexpr unsigned kRooted = 8;   // root_rank

template <unsigned kAttrs>
void* create(TF_OpKernelConstruction* construction) {
  try {
    auto node = std::make_unique<Node>();
    if ((kAttrs & kSet) != 0) node->process_set = int_attr(construction, "process_set_id");
    if ((kAttrs & kNamed) != 0) node->name = string_attr(construction, "tensor_name");
    if ((kAttrs & kRooted) != 0) node->root_rank = int_attr(construction, "root_rank");
    if ((kAttrs & kReduces) != 0) {
      node->op = int_attr(construction, "reduce_op");
      node->prescale = factor_attr(construction, "prescale_factor");
      node->postscale = factor_attr(construction, "postscale_factor");
    }
    return node.release();
  } catch (const KernelError& error) {
    const Checked status;
    tf.TF_SetStatus(status, error.code, error.what());
    tf.TF_OpKernelConstruction_Failure(construction, status);
    return nullptr;
  }
}

void destroy(void* kernel) { const std::unique_ptr<Node> node(static_cast<Node*>(kernel)); }

// --- running --------------------------------------------------------------------------------------------------------

template <void (*kWork)(Run&)>
void compute(void* kernel, TF_OpKernelContext* context) {
  const auto fail = [context](TF_Code code, const char* text) {
    const Checked status;
    tf.TF_SetStatus(status, code, text);
    tf.TF_OpKernelContext_Failure(context, status);
  };
  try {
    Run run(context, *static_cast<const Node*>(kernel));
    kWork(run);
  } catch (const KernelError& error) {
    fail(error.code, error.what());
  } catch (const std::exception& error) {
    fail(TF_UNKNOWN, error.what());
  }
}

void refuse_xla(Run&) { throw KernelError(TF_UNIMPLEMENTED, kXla); }

template <RrQuestion kQuestion>
void answer(Run& run) {
  run.give_int32(0, {}, {ask(kQuestion, run.node().process_set)});
}

void barrier(Run& run) { run_calls({call_of(Kind::kBarrier, run.node(), run.node().name.c_str())}); }

// --- shapes, as far as they are known before ranks have met
// -----------------------------------------------------------

struct DeleteShape {
  void operator()(TF_ShapeHandle* shape) const { tf.TF_DeleteShapeHandle(shape); }
};

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const std::unique_ptr<TF_ShapeHandle, DeleteShape> shape(tf.TF_NewShapeHandle());
  const auto count = static_cast<int>(tf.TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && tf.TF_GetCode(status) == TF_OK; ++i) {
    tf.TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (tf.TF_GetCode(status) == TF_OK) tf.TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const std::unique_ptr<TF_ShapeHandle, DeleteShape> shape(tf.TF_ShapeInferenceContextScalar(context));
  tf.TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

// The C API cannot say "n rows, whatever n is"; Python adds what is known.
void unknown(TF_ShapeInferenceContext* context, TF_Status* status) {
  tf.TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void none(TF_ShapeInferenceContext*, TF_Status*) {}

// --- the ops
// ----------------------------------------------------------------------------------------------------------

constexpr const char* kTypes =
    "{half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}";

struct Op {
  const char* name;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  const char* types;  // "list" of the attribute T, "one", or none
  unsigned attrs;
  void (*shape)(TF_ShapeInferenceContext*, TF_Status*);
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*);
};

template <unsigned kAttrs, void (*kWork)(Run&)>
Op op(const char* name, std::vector<const char*> inputs, std::vector<const char*> outputs, const char* types,
      void (*shape)(TF_ShapeInferenceContext*, TF_Status*)) {
  return {name, std::move(inputs), std::move(outputs), types, kAttrs, shape, create<kAttrs>, compute<kWork>};
}

std::vector<Op> ops() {
  return {
      op<kSet | kNamed | kReduces, allreduce>("RingreduceAllreduce", {"tensors: T"}, {"reduced: T"}, "list",
                                              same_shapes),
      op<kSet | kNamed | kReduces, reducescatter>("RingreduceReducescatter", {"tensors: T"}, {"scattered: T"}, "list",
                                                  unknown),
      op<kSet | kNamed, allgather>("RingreduceAllgather", {"tensors: T"}, {"gathered: T", "counts: int32"}, "list",
                                   unknown),
      op<kSet | kNamed | kRooted, broadcast>("RingreduceBroadcast", {"tensors: T"}, {"outputs: T"}, "list",
                                             same_shapes),
      op<kSet | kNamed, alltoall>("RingreduceAlltoall", {"tensor: T", "splits: int64"},
                                  {"received: T", "received_splits: int32"}, "one", unknown),
      op<kSet | kNamed, barrier>("RingreduceBarrier", {}, {}, "", none),
      op<kSet, answer<kRrJoin>>("RingreduceJoin", {}, {"last_rank: int32"}, "", scalar),
      op<kSet, answer<kRrGroupRank>>("RingreduceRank", {}, {"rank: int32"}, "", scalar),
      op<0, answer<kRrLocalRank>>("RingreduceLocalRank", {}, {"local_rank: int32"}, "", scalar),
      op<0, answer<kRrLocalSize>>("RingreduceLocalSize", {}, {"local_size: int32"}, "", scalar),
      op<kSet, answer<kRrSize>>("RingreduceSize", {}, {"size: int32"}, "", scalar),
      op<kSet, answer<kRrIncluded>>("RingreduceProcessSetIncluded", {}, {"included: int32"}, "", scalar),
  };
}

void define(const Op& op) {
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(op.name);  // registering frees it
  for (const char* input : op.inputs) tf.TF_OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : op.outputs) tf.TF_OpDefinitionBuilderAddOutput(builder, output);
  const std::string types = op.types;
  if (types == "list") tf.TF_OpDefinitionBuilderAddAttr(builder, ("T: list(" + std::string(kTypes) + ")").c_str());
  if (types == "one") tf.TF_OpDefinitionBuilderAddAttr(builder, ("T: " + std::string(kTypes)).c_str());
  if ((op.attrs & kSet) != 0) tf.TF_OpDefinitionBuilderAddAttr(builder, "process_set_id: int = 0");
  if ((op.attrs & kNamed) != 0) tf.TF_OpDefinitionBuilderAddAttr(builder, "tensor_name: string = ''");
  if ((op.attrs & kRooted) != 0) tf.TF_OpDefinitionBuilderAddAttr(builder, "root_rank: int");
  if ((op.attrs & kReduces) != 0) {
    tf.TF_OpDefinitionBuilderAddAttr(builder, "reduce_op: int");
    tf.TF_OpDefinitionBuilderAddAttr(builder, "prescale_factor: string = '1'");
    tf.TF_OpDefinitionBuilderAddAttr(builder, "postscale_factor: string = '1'");
  }
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shape);
  const Checked status;
  tf.TF_RegisterOpDefinition(builder, status);
  status.raise();
}

// XLA's devices get kernels too, which say what to do instead: TensorFlow's own message names neither cause nor cure.
void implement(const Op& op) {
  const Checked status;
  tf.TF_RegisterKernelBuilder(op.name, tf.TF_NewKernelBuilder(op.name, "CPU", op.create, op.compute, destroy), status);
  status.raise();
  for (const char* device : {"XLA_CPU_JIT", "XLA_GPU_JIT"}) {
    TF_KernelBuilder* refusing = tf.TF_NewKernelBuilder(op.name, device, op.create, compute<refuse_xla>, destroy);
    tf.TF_RegisterKernelBuilder((std::string(op.name) + device).c_str(), refusing, status);
    status.raise();
  }
}

void* library() {
  for (const char* name : {"libtensorflow_framework.so.2", "libtensorflow_framework.so.3"}) {
    if (void* handle = ::dlopen(name, RTLD_NOLOAD | RTLD_LAZY); handle != nullptr) return handle;
  }
  throw std::runtime_error("libtensorflow_framework is not loaded: import tensorflow first");
}

// TensorFlow collects the ops that are registered while it loads an object.
__attribute__((constructor)) void load() {
  try {
    void* handle = library();
#define RR_TF_LOOK_UP(result, name, parameters)                             \
  tf.name = reinterpret_cast<result(*) parameters>(::dlsym(handle, #name)); \
  if (tf.name == nullptr) throw std::runtime_error("this TensorFlow has no " #name);
    RR_TF_FUNCTIONS(RR_TF_LOOK_UP)
#undef RR_TF_LOOK_UP
    for (const Op& op : ops()) {
      define(op);
      implement(op);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
}

}  // namespace

// Why there are no ops; "" = there are.
extern "C" __attribute__((visibility("default"))) const char* ringreduce_problem() { return problem.c_str(); }

}  // namespace rr
