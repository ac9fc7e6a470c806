// ringreduce/_tensorflow.so: registers our ops and their kernels with the TensorFlow that loads it.
//
// All ops are stateful, so TensorFlow neither folds, merges nor drops them, and a tf.function runs them in the order in
// which they were written (see kToken). There they block. Those that communicate are registered a second time, as
// "...Deferred", for graphs that have no such order: these finish later (tensorflow_deferred.h).

#include <dlfcn.h>

#include <memory>

#include "base/never_destroyed.h"
#include "framework/tensorflow_deferred.h"

namespace rr {

TensorFlow tf;

namespace {

std::string& problem() {  // why there are no ops; "" = there are. No global, because load() runs before those are made
  static auto& text = never_destroyed<std::string>();
  return text;
}

constexpr const char* kXla =
    "UnavailableError: ringreduce's operators cannot be compiled by XLA: set jit_compile=False where this function is "
    "made, in tf.function(jit_compile=False) or model.compile(jit_compile=False); Keras' \"auto\" may mean True on a "
    "GPU. The functions that this one calls may be compiled, if they communicate nothing";

void refuse_xla(Run&) { throw KernelError(TF_UNIMPLEMENTED, kXla); }

template <RrQuestion kQuestion>
void answer(Run& run) {
  run.give_int32(0, {}, {ask(kQuestion, run.node().process_set)});
}

void barrier(Run& run) { run_calls({call_of(Kind::kBarrier, run.node(), run.node().name.c_str())}); }

// --- shapes, as far as they are known before ranks have met ---

struct DeleteShape {
  void operator()(TF_ShapeHandle* shape) const { tf.TF_DeleteShapeHandle(shape); }
};

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const std::unique_ptr<TF_ShapeHandle, DeleteShape> shape(tf.TF_NewShapeHandle());
  const auto count = static_cast<int>(tf.TF_ShapeInferenceContextNumInputs(context)) - 1;  // without the token
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

// --- the ops ---

// The last input of all that communicates is a resource that nobody looks into: TensorFlow runs operators that have one
// resource in program order, also across calls of functions, which it otherwise runs in any.
constexpr const char* kToken = "token: resource";
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
  void (*compute_later)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);

  bool communicates() const { return !inputs.empty(); }  // it has the token
};

template <unsigned kAttrs, void (*kWork)(Run&)>
Op op(const char* name, std::vector<const char*> inputs, std::vector<const char*> outputs, const char* types,
      void (*shape)(TF_ShapeInferenceContext*, TF_Status*)) {
  return {name,           std::move(inputs), std::move(outputs),  types, kAttrs, shape,
          create<kAttrs>, compute<kWork>,    compute_later<kWork>};
}

std::vector<Op> ops() {
  return {
      op<kSet | kNamed | kReduces, allreduce>("RingreduceAllreduce", {"tensors: T", kToken}, {"reduced: T"}, "list",
                                              same_shapes),
      op<kSet | kNamed | kReduces, reducescatter>("RingreduceReducescatter", {"tensors: T", kToken}, {"scattered: T"},
                                                  "list", unknown),
      op<kSet | kNamed, allgather>("RingreduceAllgather", {"tensors: T", kToken}, {"gathered: T", "counts: int32"},
                                   "list", unknown),
      op<kSet | kNamed | kRooted, broadcast>("RingreduceBroadcast", {"tensors: T", kToken}, {"outputs: T"}, "list",
                                             same_shapes),
      op<kSet | kNamed, alltoall>("RingreduceAlltoall", {"tensor: T", "splits: int64", kToken},
                                  {"received: T", "received_splits: int32"}, "one", unknown),
      op<kSet | kNamed, barrier>("RingreduceBarrier", {kToken}, {}, "", none),
      op<kSet, answer<kRrJoin>>("RingreduceJoin", {kToken}, {"last_rank: int32"}, "", scalar),
      op<kSet, answer<kRrGroupRank>>("RingreduceRank", {}, {"rank: int32"}, "", scalar),
      op<0, answer<kRrLocalRank>>("RingreduceLocalRank", {}, {"local_rank: int32"}, "", scalar),
      op<0, answer<kRrLocalSize>>("RingreduceLocalSize", {}, {"local_size: int32"}, "", scalar),
      op<kSet, answer<kRrSize>>("RingreduceSize", {}, {"size: int32"}, "", scalar),
      op<kSet, answer<kRrIncluded>>("RingreduceProcessSetIncluded", {}, {"included: int32"}, "", scalar),
  };
}

void define(const Op& op, const std::string& name) {
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(name.c_str());  // registering frees it
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
void implement(const Op& op, const std::string& name, bool later) {
  const Checked status;
  TF_KernelBuilder* kernel =
      later ? tf.TF_NewAsyncKernelBuilder(name.c_str(), "CPU", op.create, op.compute_later, destroy)
            : tf.TF_NewKernelBuilder(name.c_str(), "CPU", op.create, op.compute, destroy);
  tf.TF_RegisterKernelBuilder(name.c_str(), kernel, status);
  status.raise();
  for (const char* device : {"XLA_CPU_JIT", "XLA_GPU_JIT"}) {
    TF_KernelBuilder* refusing = tf.TF_NewKernelBuilder(name.c_str(), device, op.create, compute<refuse_xla>, destroy);
    tf.TF_RegisterKernelBuilder((name + device).c_str(), refusing, status);
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
    check_later(handle);
    for (const Op& op : ops()) {
      for (const bool later : {false, true}) {
        if (later && !op.communicates()) continue;
        const std::string name = std::string(op.name) + (later ? "Deferred" : "");
        define(op, name);
        implement(op, name, later);
      }
    }
  } catch (const std::exception& error) {
    problem() = error.what();
  }
}

}  // namespace

// Why there are no ops; "" = there are.
extern "C" __attribute__((visibility("default"))) const char* ringreduce_problem() { return problem().c_str(); }

}  // namespace rr
