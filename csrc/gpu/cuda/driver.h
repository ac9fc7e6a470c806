// The functions of the CUDA driver that we call, from libcuda.so.1 at run time: no cuda.h, nothing linked.
//
// Types are declared here under our own names (tests/cpp/gpu/cuda_abi.cc compares them with cuda.h where that is
// installed); functions are looked up by the versioned names under which the library exports them, so that a newer
// driver keeps giving us the same signature. The oldest driver that has them all is that of CUDA 11.7.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/errors.h"

namespace rr {
namespace cu {

using Result = int;                     // CUresult
using DeviceOrdinal = int;              // CUdevice
using DevicePtr = unsigned long long;   // CUdeviceptr
using MemHandle = unsigned long long;   // CUmemGenericAllocationHandle
using Context = struct ContextObject*;  // CUcontext, and so on
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;

struct Uuid {
  char bytes[16];
};

struct IpcMemHandle {
  char reserved[64];
};

struct MemLocation {
  int type;
  int id;
};

struct MemAllocationProp {
  int type;
  int requested_handle_types;
  MemLocation location;
  void* win32_handle_meta_data;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct MemAccessDesc {
  MemLocation location;
  int flags;
};

// X(ours, cuda.h's, value); those that the code or the tests' fake driver speak of.
#define RR_CUDA_RESULTS(X)                                                        \
  X(kSuccess, CUDA_SUCCESS, 0)                                                    \
  X(kInvalidValue, CUDA_ERROR_INVALID_VALUE, 1)                                   \
  X(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY, 2)                                    \
  X(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED, 3)                               \
  X(kDeinitialized, CUDA_ERROR_DEINITIALIZED, 4)                                  \
  X(kNoDevice, CUDA_ERROR_NO_DEVICE, 100)                                         \
  X(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE, 101)                               \
  X(kInvalidImage, CUDA_ERROR_INVALID_IMAGE, 200)                                 \
  X(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT, 201)                             \
  X(kMapFailed, CUDA_ERROR_MAP_FAILED, 205)                                       \
  X(kAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED, 208)                               \
  X(kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                           \
  X(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE, 214)                         \
  X(kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)              \
  X(kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                   \
  X(kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)              \
  X(kContained, CUDA_ERROR_CONTAINED, 226)                                        \
  X(kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM, 304)                           \
  X(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE, 400)                               \
  X(kNotFound, CUDA_ERROR_NOT_FOUND, 500)                                         \
  X(kNotReady, CUDA_ERROR_NOT_READY, 600)                                         \
  X(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS, 700)                             \
  X(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT, 702)                               \
  X(kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)       \
  X(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                    \
  X(kAssert, CUDA_ERROR_ASSERT, 710)                                              \
  X(kTooManyPeers, CUDA_ERROR_TOO_MANY_PEERS, 711)                                \
  X(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712) \
  X(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)         \
  X(kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                    \
  X(kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)                     \
  X(kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS, 716)                       \
  X(kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)                  \
  X(kInvalidPc, CUDA_ERROR_INVALID_PC, 718)                                       \
  X(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED, 719)                                 \
  X(kNotPermitted, CUDA_ERROR_NOT_PERMITTED, 800)                                 \
  X(kNotSupported, CUDA_ERROR_NOT_SUPPORTED, 801)                                 \
  X(kMpsClientTerminated, CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)                  \
  X(kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)        \
  X(kStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)        \
  X(kStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904)              \
  X(kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)              \
  X(kStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905)            \
  X(kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT, 907)                               \
  X(kUnknown, CUDA_ERROR_UNKNOWN, 999)

// X(ours, cuda.h's, value)
#define RR_CUDA_CONSTANTS(X)                                                       \
  X(kStreamNonBlocking, CU_STREAM_NON_BLOCKING, 1)                                 \
  X(kEventDisableTiming, CU_EVENT_DISABLE_TIMING, 2)                               \
  X(kCaptureStatusNone, CU_STREAM_CAPTURE_STATUS_NONE, 0)                          \
  X(kCaptureStatusActive, CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)                      \
  X(kCaptureStatusInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)            \
  X(kCaptureModeGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL, 0)                          \
  X(kCaptureModeThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)               \
  X(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED, 2)                        \
  X(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE, 1)                               \
  X(kHostAllocDevicemap, CU_MEMHOSTALLOC_DEVICEMAP, 2)                             \
  X(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE, 1)                         \
  X(kHostRegisterDevicemap, CU_MEMHOSTREGISTER_DEVICEMAP, 2)                       \
  X(kIpcLazyEnablePeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)               \
  X(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                       \
  X(kPointerBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                           \
  X(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                 \
  X(kPointerLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10) \
  X(kPointerAllowedHandleTypes, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14)     \
  X(kMemoryTypeHost, CU_MEMORYTYPE_HOST, 1)                                        \
  X(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE, 2)                                    \
  X(kHandleTypePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)               \
  X(kLocationTypeDevice, CU_MEM_LOCATION_TYPE_DEVICE, 1)                           \
  X(kAllocationTypePinned, CU_MEM_ALLOCATION_TYPE_PINNED, 1)                       \
  X(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                       \
  X(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                      \
  X(kAttributeMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)   \
  X(kAttributeUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41)       \
  X(kAttributeComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)      \
  X(kAttributeComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)      \
  X(kAttributeHostPointerForRegistered, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91)

enum : Result {
#define RR_ENUMERATOR(ours, theirs, value) ours = value,
  RR_CUDA_RESULTS(RR_ENUMERATOR)
#undef RR_ENUMERATOR
};

#define RR_CONSTANT(ours, theirs, value) inline constexpr unsigned ours = value;
RR_CUDA_CONSTANTS(RR_CONSTANT)
#undef RR_CONSTANT

// X(member, exported name, signature without the result, which is CUresult)
#define RR_CUDA_CALLS(X)                                                                                           \
  X(get_error_name, cuGetErrorName, Result, const char**)                                                          \
  X(get_error_string, cuGetErrorString, Result, const char**)                                                      \
  X(init, cuInit, unsigned)                                                                                        \
  X(driver_get_version, cuDriverGetVersion, int*)                                                                  \
  X(device_get_count, cuDeviceGetCount, int*)                                                                      \
  X(device_get, cuDeviceGet, DeviceOrdinal*, int)                                                                  \
  X(device_get_name, cuDeviceGetName, char*, int, DeviceOrdinal)                                                   \
  X(device_get_uuid, cuDeviceGetUuid_v2, Uuid*, DeviceOrdinal)                                                     \
  X(device_get_attribute, cuDeviceGetAttribute, int*, int, DeviceOrdinal)                                          \
  X(device_can_access_peer, cuDeviceCanAccessPeer, int*, DeviceOrdinal, DeviceOrdinal)                             \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, Context*, DeviceOrdinal)                                  \
  X(device_primary_ctx_release, cuDevicePrimaryCtxRelease_v2, DeviceOrdinal)                                       \
  X(device_primary_ctx_get_state, cuDevicePrimaryCtxGetState, DeviceOrdinal, unsigned*, int*)                      \
  X(ctx_get_current, cuCtxGetCurrent, Context*)                                                                    \
  X(ctx_push_current, cuCtxPushCurrent_v2, Context)                                                                \
  X(ctx_pop_current, cuCtxPopCurrent_v2, Context*)                                                                 \
  X(ctx_enable_peer_access, cuCtxEnablePeerAccess, Context, unsigned)                                              \
  X(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, int*, int*)                                        \
  X(thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode, int*)                                         \
  X(module_load_data, cuModuleLoadData, Module*, const void*)                                                      \
  X(module_unload, cuModuleUnload, Module)                                                                         \
  X(module_get_function, cuModuleGetFunction, Function*, Module, const char*)                                      \
  X(launch_kernel, cuLaunchKernel, Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
    Stream, void**, void**)                                                                                        \
  X(stream_create_with_priority, cuStreamCreateWithPriority, Stream*, unsigned, int)                               \
  X(stream_destroy, cuStreamDestroy_v2, Stream)                                                                    \
  X(stream_is_capturing, cuStreamIsCapturing, Stream, int*)                                                        \
  X(stream_wait_event, cuStreamWaitEvent, Stream, Event, unsigned)                                                 \
  X(event_create, cuEventCreate, Event*, unsigned)                                                                 \
  X(event_destroy, cuEventDestroy_v2, Event)                                                                       \
  X(event_record, cuEventRecord, Event, Stream)                                                                    \
  X(event_query, cuEventQuery, Event)                                                                              \
  X(mem_alloc, cuMemAlloc_v2, DevicePtr*, size_t)                                                                  \
  X(mem_free, cuMemFree_v2, DevicePtr)                                                                             \
  X(mem_host_alloc, cuMemHostAlloc, void**, size_t, unsigned)                                                      \
  X(mem_free_host, cuMemFreeHost, void*)                                                                           \
  X(mem_host_register, cuMemHostRegister_v2, void*, size_t, unsigned)                                              \
  X(mem_host_unregister, cuMemHostUnregister, void*)                                                               \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2, DevicePtr*, void*, unsigned)                        \
  X(memcpy_async, cuMemcpyAsync, DevicePtr, DevicePtr, size_t, Stream)                                             \
  X(mem_get_address_range, cuMemGetAddressRange_v2, DevicePtr*, size_t*, DevicePtr)                                \
  X(pointer_get_attribute, cuPointerGetAttribute, void*, int, DevicePtr)                                           \
  X(ipc_get_mem_handle, cuIpcGetMemHandle, IpcMemHandle*, DevicePtr)                                               \
  X(ipc_open_mem_handle, cuIpcOpenMemHandle_v2, DevicePtr*, IpcMemHandle, unsigned)                                \
  X(ipc_close_mem_handle, cuIpcCloseMemHandle, DevicePtr)                                                          \
  X(mem_retain_allocation_handle, cuMemRetainAllocationHandle, MemHandle*, void*)                                  \
  X(mem_export_to_shareable_handle, cuMemExportToShareableHandle, void*, MemHandle, int, unsigned long long)       \
  X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle, MemHandle*, void*, int)                      \
  X(mem_release, cuMemRelease, MemHandle)                                                                          \
  X(mem_address_reserve, cuMemAddressReserve, DevicePtr*, size_t, size_t, DevicePtr, unsigned long long)           \
  X(mem_address_free, cuMemAddressFree, DevicePtr, size_t)                                                         \
  X(mem_map, cuMemMap, DevicePtr, size_t, size_t, MemHandle, unsigned long long)                                   \
  X(mem_unmap, cuMemUnmap, DevicePtr, size_t)                                                                      \
  X(mem_set_access, cuMemSetAccess, DevicePtr, size_t, const MemAccessDesc*, size_t)

// Ones that an older driver lacks; null there.
#define RR_CUDA_OPTIONAL_CALLS(X) X(func_load, cuFuncLoad, Function)  // CUDA 12.4

// The exported name of each, for messages.
namespace symbols {
#define RR_SYMBOL(member, symbol, ...) inline constexpr const char* member = #symbol;
RR_CUDA_CALLS(RR_SYMBOL)
RR_CUDA_OPTIONAL_CALLS(RR_SYMBOL)
#undef RR_SYMBOL
}  // namespace symbols

}  // namespace cu

inline constexpr const char* kCudaLibrary = "libcuda.so.1";

// A loaded driver. It is never unloaded: its threads may outlive whoever opened it.
class CudaDriver {
 public:
  // Throws UnavailableError: no such library, or one that is too old; names what is missing. Calls nothing of it.
  static std::shared_ptr<const CudaDriver> open(const std::string& library);

#define RR_MEMBER(member, symbol, ...) cu::Result (*member)(__VA_ARGS__) = nullptr;
#define RR_USING(name) using name = cu::name;
  RR_USING(Result)
  RR_USING(DeviceOrdinal)
  RR_USING(DevicePtr)
  RR_USING(MemHandle)
  RR_USING(Context)
  RR_USING(Stream)
  RR_USING(Event)
  RR_USING(Module)
  RR_USING(Function)
  RR_USING(Uuid)
  RR_USING(IpcMemHandle)
  RR_USING(MemAccessDesc)
  RR_CUDA_CALLS(RR_MEMBER)
  RR_CUDA_OPTIONAL_CALLS(RR_MEMBER)
#undef RR_MEMBER
#undef RR_USING

  const std::string& library() const { return library_; }
  // A driver that runs our kernels itself and takes no compiled ones: the one of our tests.
  bool needs_image() const { return needs_image_; }
  // "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", in the driver's words.
  std::string text(cu::Result result) const;
  // The version of CUDA that the driver is for: "13.0".
  std::string version() const;

 private:
  explicit CudaDriver(const std::string& library);

  std::string library_;
  bool needs_image_ = true;
};

// Whether a context that has said this answers nothing else any more, in this process.
bool is_sticky(cu::Result result);

}  // namespace rr
