// What we use of TensorFlow's C API for ops and kernels: opaque types, numbers, and prototypes written out by hand.
//
// The functions are those of tensorflow/c/{tf_status,tf_tensor,ops,kernels}.h, which libtensorflow_framework exports to
// C; they are looked up by name when this object is loaded, so it is compiled against no TensorFlow and linked with
// none. tests/python/tensorflow/test_tensorflow_abi.py compares the prototypes with the headers of the TensorFlow that
// is installed.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;

// The values of enums of the C API, whose types are int on this platform.
enum TF_Code : int {
  TF_OK = 0,
  TF_CANCELLED = 1,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_FAILED_PRECONDITION = 9,
  TF_ABORTED = 10,
  TF_UNIMPLEMENTED = 12,
  TF_INTERNAL = 13
};

enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_UINT16 = 17,
  TF_HALF = 19,
  TF_UINT32 = 22,
  TF_UINT64 = 23
};

// X(result, name, parameters)
#define RR_TF_FUNCTIONS(X)                                                                                        \
  X(TF_Status*, TF_NewStatus, (void))                                                                             \
  X(void, TF_DeleteStatus, (TF_Status*))                                                                          \
  X(void, TF_SetStatus, (TF_Status * s, TF_Code code, const char* msg))                                           \
  X(TF_Code, TF_GetCode, (const TF_Status* s))                                                                    \
  X(const char*, TF_Message, (const TF_Status* s))                                                                \
  X(TF_Tensor*, TF_NewTensor,                                                                                     \
    (TF_DataType, const int64_t* dims, int num_dims, void* data, size_t len,                                      \
     void (*deallocator)(void* data, size_t len, void* arg), void* deallocator_arg))                              \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                                                          \
  X(TF_DataType, TF_TensorType, (const TF_Tensor*))                                                               \
  X(int, TF_NumDims, (const TF_Tensor*))                                                                          \
  X(int64_t, TF_Dim, (const TF_Tensor* tensor, int dim_index))                                                    \
  X(void*, TF_TensorData, (const TF_Tensor*))                                                                     \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char* op_name))                                    \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder * builder, TF_Status * status))                        \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder * builder, const char* attr_spec))               \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder * builder, const char* input_spec))             \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder * builder, const char* output_spec))           \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder * builder, bool is_stateful))              \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                                        \
    (TF_OpDefinitionBuilder * builder,                                                                            \
     void (*shape_inference_func)(TF_ShapeInferenceContext * ctx, TF_Status * status)))                           \
  X(int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext * ctx))                                 \
  X(TF_ShapeHandle*, TF_NewShapeHandle, (void))                                                                   \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextScalar, (TF_ShapeInferenceContext * ctx))                            \
  X(void, TF_ShapeInferenceContextGetInput,                                                                       \
    (TF_ShapeInferenceContext * ctx, int i, TF_ShapeHandle* handle, TF_Status* status))                           \
  X(void, TF_ShapeInferenceContextSetOutput,                                                                      \
    (TF_ShapeInferenceContext * ctx, int i, TF_ShapeHandle* handle, TF_Status* status))                           \
  X(void, TF_ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext * ctx, TF_Status * status))          \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle * handle))                                                        \
  X(TF_KernelBuilder*, TF_NewKernelBuilder,                                                                       \
    (const char* op_name, const char* device_name, void* (*create_func)(TF_OpKernelConstruction*),                \
     void (*compute_func)(void*, TF_OpKernelContext*), void (*delete_func)(void*)))                               \
  X(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                                                                  \
    (const char* op_name, const char* device_name, void* (*create_func)(TF_OpKernelConstruction*),                \
     void (*compute_async_func)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback* done),                  \
     void (*delete_func)(void*)))                                                                                 \
  X(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                                       \
  X(uint64_t, TF_GetFrameId, (TF_OpKernelContext * ctx))                                                          \
  X(int64_t, TF_GetIterId, (TF_OpKernelContext * ctx))                                                            \
  X(void, TF_RegisterKernelBuilder, (const char* kernel_name, TF_KernelBuilder* builder, TF_Status* status))      \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction * ctx, TF_Status * status))                   \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                                    \
    (TF_OpKernelConstruction * ctx, const char* attr_name, int32_t* list_size, int32_t* total_size,               \
     TF_Status* status))                                                                                          \
  X(void, TF_OpKernelConstruction_GetAttrInt64,                                                                   \
    (TF_OpKernelConstruction * ctx, const char* attr_name, int64_t* val, TF_Status* status))                      \
  X(void, TF_OpKernelConstruction_GetAttrString,                                                                  \
    (TF_OpKernelConstruction * ctx, const char* attr_name, char* val, size_t max_length, TF_Status* status))      \
  X(int, TF_NumInputs, (TF_OpKernelContext * ctx))                                                                \
  X(void, TF_GetInput, (TF_OpKernelContext * ctx, int i, TF_Tensor** tensor, TF_Status* status))                  \
  X(void, TF_SetOutput, (TF_OpKernelContext * ctx, int i, const TF_Tensor* tensor, TF_Status* status))            \
  X(TF_Tensor*, TF_AllocateOutput,                                                                                \
    (TF_OpKernelContext * context, int index, TF_DataType dtype, const int64_t* dims, int num_dims, size_t len,   \
     TF_Status* status))                                                                                          \
  X(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                                                                  \
    (TF_OpKernelContext * context, const int* candidate_input_indices, int num_candidate_input_indices,           \
     int output_index, const int64_t* output_dims, int output_num_dims, int* forwarded_input, TF_Status* status)) \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext * ctx, TF_Status * status))

}  // extern "C"

namespace rr {

struct TensorFlow {
  // TensorFlow calls us, hence is there, before anything here is used: see tensorflow.cc.
#define RR_TF_POINTER(result, name, parameters) result(*name) parameters = nullptr;
  RR_TF_FUNCTIONS(RR_TF_POINTER)
#undef RR_TF_POINTER
};
extern TensorFlow tf;

}  // namespace rr
