// NCCL on the CPU, for ranks that are threads or processes: a shared library with NCCL's functions, whose ranks
// exchange their data through files. It is as strict and as slow to be ready as NCCL may be: communicators must not
// block, what is asked for is there only after some looks, an operation waits in its stream until all ranks have come
// to theirs.
//
// Here is how a communicator begins.
#include "fake_nccl.h"

#include <cstdio>
#include <cstring>
#include <random>

#include "communicator.h"
#include "process.h"

using namespace fake_nccl;
using rr::NcclConfig;
using rr::NcclResult;
using rr::NcclUniqueId;

EXPORT const char* ncclGetErrorString(NcclResult code) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return static_cast<unsigned>(code) < 8 ? kTexts[static_cast<int>(code)] : "unknown result code";
}

EXPORT const char* ncclGetLastError(ncclComm*) { return "what the fake says last"; }

EXPORT NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  if (folder().empty()) return NcclResult::kSystemError;
  std::random_device random;
  std::memset(id->internal, 0, sizeof id->internal);
  std::snprintf(id->internal, sizeof id->internal, "fake-%08x%08x", random(), random());
  return NcclResult::kSuccess;
}

NcclResult fake_nccl::begin(ncclComm** made, int size, const NcclUniqueId& id, int rank, const NcclConfig& config) {
  if (config.magic != 0xcafebeef || config.size < 20) return NcclResult::kInvalidArgument;
  if (config.blocking != 0) return misuse("a communicator that blocks");
  if (std::strncmp(id.internal, "fake-", 5) != 0 || rank < 0 || rank >= size) return NcclResult::kInvalidArgument;
  void* device = process().has_hooks ? process().hooks.device() : nullptr;
  if (process().has_hooks && device == nullptr) return misuse("the thread has no current device");
  read_failures();
  const auto comm = make(folder() + "/" + id.internal, rank, size, device);
  comm->say("init");
  *made = comm.get();
  return NcclResult::kInProgress;
}
