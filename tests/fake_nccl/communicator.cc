#include "communicator.h"

#include <unistd.h>

#include <cstring>
#include <mutex>

#include "process.h"

using namespace fake_nccl;
using rr::NcclConfig;
using rr::NcclResult;

namespace {

constexpr int kLooks = 3;  // until what was asked for has happened

std::mutex comms_mutex;
std::map<ncclComm*, std::shared_ptr<ncclComm>> comms;

void forget(ncclComm& comm) {
  {
    const std::lock_guard lock(process().mutex);
    --process().counts.communicators;
    process().counts.operations -= static_cast<int>(comm.operations.size());
  }
  comm.clean();
  const std::lock_guard lock(comms_mutex);
  comms.erase(&comm);
}

}  // namespace

void ncclComm::clean() {
  files.erase(file("end", rank));  // others may not have looked yet
  for (const std::string& path : files) ::unlink(path.c_str());
  files.clear();
}

namespace fake_nccl {

std::shared_ptr<ncclComm> find(ncclComm* comm) {
  const std::lock_guard lock(comms_mutex);
  const auto known = comms.find(comm);
  return known == comms.end() ? nullptr : known->second;
}

std::shared_ptr<ncclComm> make(const std::string& base, int rank, int size, void* device) {
  auto comm = std::make_shared<ncclComm>();
  comm->base = base;
  comm->rank = rank;
  comm->size = size;
  comm->device = device;
  {
    const std::lock_guard lock(process().mutex);
    ++process().counts.communicators;
    ++process().counts.made;
  }
  const std::lock_guard lock(comms_mutex);
  comms[comm.get()] = comm;
  return comm;
}

}  // namespace fake_nccl

EXPORT NcclResult ncclCommShrink(ncclComm* parent, int* excluded, int count, ncclComm** made, NcclConfig* config,
                                 int flags) {
  const auto comm = find(parent);
  if (comm == nullptr || comm->state != ncclComm::kReady) return misuse("a communicator that is not ready is shrunk");
  if (config != nullptr || flags != 0 || count < 1) return NcclResult::kInvalidArgument;
  std::string base = comm->base + "-without";
  int rank = comm->rank;
  for (int i = 0; i < count; ++i) {
    if (excluded[i] == comm->rank) return misuse("an excluded rank shrinks");
    base += "." + std::to_string(excluded[i]);
    rank -= excluded[i] < comm->rank;
  }
  comm->child = make(base, rank, comm->size - count, comm->device);
  comm->child->say("init");
  comm->child_at = made;
  comm->state = ncclComm::kShrinking;
  comm->looks = 0;
  const std::lock_guard lock(process().mutex);
  ++process().counts.shrunk;
  return NcclResult::kInProgress;
}

EXPORT NcclResult ncclCommGetAsyncError(ncclComm* handle, NcclResult* result) {
  const auto comm = find(handle);
  if (comm == nullptr) return misuse("a communicator that has ended is asked for errors");
  *result = failure_of(comm->rank, comm->executed);
  if (*result != NcclResult::kSuccess) return NcclResult::kSuccess;
  *result = NcclResult::kInProgress;
  if (++comm->looks < kLooks) return NcclResult::kSuccess;
  switch (comm->state) {
    case ncclComm::kMaking:
      if (!comm->all_said("init")) return NcclResult::kSuccess;
      break;
    case ncclComm::kLaunching:
      launch(*comm);
      break;
    case ncclComm::kShrinking:
      *comm->child_at = comm->child.get();
      comm->child.reset();
      break;
    case ncclComm::kFinalizing:
      if (!comm->all_said("end")) return NcclResult::kSuccess;
      comm->state = ncclComm::kFinalized;
      *result = NcclResult::kSuccess;
      return NcclResult::kSuccess;
    case ncclComm::kFinalized:
    case ncclComm::kReady:
      *result = NcclResult::kSuccess;
      return NcclResult::kSuccess;
  }
  comm->state = ncclComm::kReady;
  *result = NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

EXPORT NcclResult ncclCommFinalize(ncclComm* handle) {
  const auto comm = find(handle);
  if (comm == nullptr || comm->state != ncclComm::kReady)
    return misuse("a communicator that is not ready is finalized");
  comm->say("end");
  comm->state = ncclComm::kFinalizing;
  comm->looks = 0;
  return NcclResult::kInProgress;
}

EXPORT NcclResult ncclCommDestroy(ncclComm* handle) {
  const auto comm = find(handle);
  if (comm == nullptr || comm->state != ncclComm::kFinalized) return misuse("destroyed before it is finalized");
  if (comm->operations.size() != 0) misuse("an operation was never destroyed");
  forget(*comm);
  return NcclResult::kSuccess;
}

EXPORT NcclResult ncclCommAbort(ncclComm* handle) {
  const auto comm = find(handle);
  if (comm == nullptr) return misuse("a communicator that has ended is aborted");
  while (process().abort_blocks.load()) ::usleep(100);
  comm->aborted.store(true);
  {
    const std::lock_guard lock(process().mutex);
    ++process().counts.aborted;
  }
  if (comm->child != nullptr) forget(*comm->child);
  forget(*comm);
  return NcclResult::kSuccess;
}
