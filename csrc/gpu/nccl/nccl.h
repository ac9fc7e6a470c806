// The functions of NCCL that we call, from libnccl.so.2: no nccl.h, nothing linked.
//
// The declarations are our own, after NCCL's documentation; a communicator is opaque. nccl_communicator.h makes codes
// into errors and keeps every wait short.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "gpu/device.h"

struct ncclComm;  // NCCL's own

namespace rr {

enum class NcclResult : int {
  kSuccess,
  kUnhandledCudaError,
  kSystemError,
  kInternalError,
  kInvalidArgument,
  kInvalidUsage,
  kRemoteError,
  kInProgress,
};

enum class NcclType : int { kInt8, kUInt8, kInt32, kUInt32, kInt64, kUInt64, kFloat16, kFloat32, kFloat64, kBFloat16 };
// Values from 5 on are operations that a communicator has been asked to make.
enum class NcclOp : int { kSum, kProduct, kMax, kMin, kAverage };
enum class NcclScalar : int { kDevice, kHostImmediate };

struct NcclUniqueId {
  char internal[128];
};

// The beginning of ncclConfig_t as of 2.14. NCCL reads `size` bytes, and takes what has come since from its defaults.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  int unused = 0;
};
static_assert(sizeof(NcclConfig) == 24 && std::is_standard_layout_v<NcclConfig>);

// X(name, parameters). Every one returns an NcclResult.
#define RR_NCCL_CALLS(X)                                                              \
  X(GetVersion, (int*))                                                               \
  X(GetUniqueId, (NcclUniqueId*))                                                     \
  X(CommInitRankConfig, (ncclComm**, int, NcclUniqueId, int, NcclConfig*))            \
  X(CommFinalize, (ncclComm*))                                                        \
  X(CommDestroy, (ncclComm*))                                                         \
  X(CommAbort, (ncclComm*))                                                           \
  X(CommGetAsyncError, (ncclComm*, NcclResult*))                                      \
  X(GroupStart, ())                                                                   \
  X(GroupEnd, ())                                                                     \
  X(RedOpCreatePreMulSum, (NcclOp*, void*, NcclType, NcclScalar, ncclComm*))          \
  X(RedOpDestroy, (NcclOp, ncclComm*))                                                \
  X(AllReduce, (const void*, void*, size_t, NcclType, NcclOp, ncclComm*, Stream))     \
  X(Reduce, (const void*, void*, size_t, NcclType, NcclOp, int, ncclComm*, Stream))   \
  X(ReduceScatter, (const void*, void*, size_t, NcclType, NcclOp, ncclComm*, Stream)) \
  X(Broadcast, (const void*, void*, size_t, NcclType, int, ncclComm*, Stream))        \
  X(AllGather, (const void*, void*, size_t, NcclType, ncclComm*, Stream))             \
  X(Send, (const void*, size_t, NcclType, int, ncclComm*, Stream))                    \
  X(Recv, (void*, size_t, NcclType, int, ncclComm*, Stream))

// The library, once per process; it stays loaded until the process ends, because its threads may.
class NcclLibrary {
 public:
#define RR_MEMBER(name, parameters) NcclResult(*name) parameters = nullptr;
  RR_NCCL_CALLS(RR_MEMBER)
#undef RR_MEMBER
  // Newer than the oldest NCCL that will do; null where the library lacks it.
  NcclResult (*CommShrink)(ncclComm*, int*, int, ncclComm**, NcclConfig*, int) = nullptr;

  int version() const { return version_; }           // NCCL's code, such as 22705
  const std::string& path() const { return path_; }  // as it was opened
  std::string name() const;                          // "NCCL 2.27.5"
  // Of NCCL_HOSTID, by which NCCL tells hosts apart where it is set; else 0. It refuses two ranks on one GPU of a host.
  uint64_t host_key() const { return host_key_; }
  std::string error(NcclResult code, ncclComm* communicator) const;  // NCCL's words; the communicator may be null

  // path: RINGREDUCE_NCCL_LIBRARY; empty: the one that this process has loaded already (torch's), else the one that
  // Python has found (nccl_found_at), else the system's. Throws UnavailableError, naming what was tried or is missing.
  explicit NcclLibrary(const std::string& path);

 private:
  void load(const std::string& path);
  std::string path_;
  int version_ = 0;
  uint64_t host_key_ = 0;
  void* handle_ = nullptr;
  const char* (*GetErrorString_)(NcclResult) = nullptr;
  const char* (*GetLastError_)(ncclComm*) = nullptr;
};

// The same object for the same path as long as the process lives; a failure is tried again at the next call.
std::shared_ptr<const NcclLibrary> nccl_library(const std::string& path);
// Where a package has one that nobody has loaded yet; no effect once a library has been opened.
void nccl_found_at(const std::string& path);

// A sum in NCCL multiplies each input by one factor first, in the tensor's dtype: prescale * postscale / divisor.
double nccl_factor(const Reduction& reduction);
// Whether NCCL computes what reduction.h says, up to floating rounding. It does not: 16-bit integers and bool; logical
// and bitwise operations; factors or Average of integers; factors that float16 or bfloat16 cannot hold exactly (1/3 of
// a bfloat16 would be 0.1 % off for all elements); Min and Max of floats (what they are of a NaN NCCL does not say);
// factors of anything but a sum.
bool nccl_can(const Reduction& reduction);
NcclType nccl_type(DType dtype);  // of a dtype that NCCL has
// A factor as one element of a floating dtype, for ncclRedOpCreatePreMulSum. Precondition: nccl_can().
std::array<std::byte, 8> nccl_scalar(DType dtype, double factor);

}  // namespace rr
