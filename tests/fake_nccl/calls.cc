// Groups of calls, and the operations that they name.
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "communicator.h"
#include "process.h"

using namespace fake_nccl;
using rr::NcclOp;
using rr::NcclResult;
using rr::NcclScalar;
using rr::NcclType;

namespace {

struct Open {
  int depth = 0;
  ncclComm* comm = nullptr;
  std::vector<Call> calls;
  void* stream = nullptr;
};
// By thread. No thread_local: the thread sanitizer does not see that the loader frees that of a library that is closed.
Open& open_group() {
  static std::mutex mutex;
  static std::map<std::thread::id, Open> groups;
  const std::lock_guard lock(mutex);
  return groups[std::this_thread::get_id()];
}

void count_open_groups(int change) {
  const std::lock_guard lock(process().mutex);
  process().counts.open_groups += change;
}

NcclResult add(ncclComm* handle, void* stream, Call call) {
  const auto comm = find(handle);
  if (comm == nullptr) return misuse("a call on a communicator that has ended");
  if (comm->state != ncclComm::kReady) return misuse("a call on a communicator that is not ready");
  Open& open = open_group();
  if (open.depth == 0) return misuse("a call outside a group, which this fake does not know");
  if (open.comm != nullptr && open.comm != handle) return misuse("two communicators in a group");
  if (call.count == 0) return misuse("a call of no elements");
  if (call.peer < 0 || call.peer >= comm->size) return misuse("no such peer");
  if (const NcclResult code = failure_of_calls(comm->rank); code != NcclResult::kSuccess) return code;
  open.comm = handle;
  open.stream = stream;
  open.calls.push_back(std::move(call));
  return NcclResult::kSuccess;
}

// The reduction that an operation of a call stands for.
bool resolve(ncclComm* handle, NcclType type, NcclOp op, rr::Reduction& reduction) {
  reduction.dtype = dtype_of(type);
  if (static_cast<int>(op) < 5) {
    constexpr rr::ReduceOp kOps[] = {rr::ReduceOp::kSum, rr::ReduceOp::kProduct, rr::ReduceOp::kMax, rr::ReduceOp::kMin,
                                     rr::ReduceOp::kAverage};
    reduction.op = kOps[static_cast<int>(op)];
    return true;
  }
  const auto comm = find(handle);
  if (comm == nullptr) return false;
  const auto known = comm->operations.find(op);
  if (known == comm->operations.end() || known->second.first != type) return false;
  reduction.prescale = known->second.second;
  return true;
}

NcclResult add_reduction(Call::Kind kind, const void* src, void* dst, size_t count, NcclType type, NcclOp op, int peer,
                         ncclComm* comm, void* stream) {
  rr::Reduction reduction;
  if (!resolve(comm, type, op, reduction)) return misuse("an operation that was never made, or for another type");
  return add(comm, stream, {kind, src, dst, count, type, reduction, peer, "", {}});
}

double scalar_of(NcclType type, const void* at) {
  uint16_t bits = 0;
  float narrow = 0;
  double wide = 0;
  switch (type) {
    case NcclType::kFloat16:
    case NcclType::kBFloat16:
      std::memcpy(&bits, at, sizeof bits);
      return rr_test::decode(type == NcclType::kFloat16 ? rr_test::kFp16 : rr_test::kBf16, bits);
    case NcclType::kFloat32:
      std::memcpy(&narrow, at, sizeof narrow);
      return narrow;
    default:
      std::memcpy(&wide, at, sizeof wide);
      return wide;
  }
}

}  // namespace

EXPORT NcclResult ncclGroupStart() {
  if (++open_group().depth == 1) count_open_groups(1);
  return NcclResult::kSuccess;
}

EXPORT NcclResult ncclGroupEnd() {
  Open& open = open_group();
  if (open.depth == 0) return misuse("a group ends that was never started");
  if (--open.depth != 0) return NcclResult::kSuccess;
  const Open group = std::exchange(open, {});
  count_open_groups(-1);
  if (group.comm == nullptr) return NcclResult::kSuccess;
  const auto comm = find(group.comm);
  {
    const std::lock_guard lock(process().mutex);
    ++process().counts.groups;
    process().counts.calls += static_cast<int>(group.calls.size());
  }
  comm->calls = group.calls;
  comm->stream = group.stream;
  comm->state = ncclComm::kLaunching;
  comm->looks = 0;
  return NcclResult::kInProgress;
}

EXPORT NcclResult ncclRedOpCreatePreMulSum(NcclOp* op, void* scalar, NcclType type, NcclScalar residence,
                                           ncclComm* handle) {
  const auto comm = find(handle);
  if (comm == nullptr || comm->state != ncclComm::kReady) return misuse("an operation is made too early");
  if (residence != NcclScalar::kHostImmediate) return NcclResult::kInvalidArgument;
  *op = static_cast<NcclOp>(comm->next_operation++);
  comm->operations[*op] = {type, scalar_of(type, scalar)};
  const std::lock_guard lock(process().mutex);
  ++process().counts.operations;
  return NcclResult::kSuccess;
}

EXPORT NcclResult ncclRedOpDestroy(NcclOp op, ncclComm* handle) {
  const auto comm = find(handle);
  if (comm == nullptr || comm->operations.erase(op) == 0) return misuse("an operation is destroyed that there is not");
  const std::lock_guard lock(process().mutex);
  --process().counts.operations;
  return NcclResult::kSuccess;
}

EXPORT NcclResult ncclAllReduce(const void* src, void* dst, size_t count, NcclType type, NcclOp op, ncclComm* comm,
                                void* stream) {
  return add_reduction(Call::kAllReduce, src, dst, count, type, op, 0, comm, stream);
}

EXPORT NcclResult ncclReduce(const void* src, void* dst, size_t count, NcclType type, NcclOp op, int root,
                             ncclComm* comm, void* stream) {
  return add_reduction(Call::kReduce, src, dst, count, type, op, root, comm, stream);
}

EXPORT NcclResult ncclReduceScatter(const void* src, void* dst, size_t count, NcclType type, NcclOp op, ncclComm* comm,
                                    void* stream) {
  return add_reduction(Call::kReduceScatter, src, dst, count, type, op, 0, comm, stream);
}

EXPORT NcclResult ncclBroadcast(const void* src, void* dst, size_t count, NcclType type, int root, ncclComm* comm,
                                void* stream) {
  return add(comm, stream, {Call::kBroadcast, src, dst, count, type, {}, root, "", {}});
}

EXPORT NcclResult ncclAllGather(const void* src, void* dst, size_t count, NcclType type, ncclComm* comm, void* stream) {
  return add(comm, stream, {Call::kAllGather, src, dst, count, type, {}, 0, "", {}});
}

EXPORT NcclResult ncclSend(const void* src, size_t count, NcclType type, int peer, ncclComm* comm, void* stream) {
  return add(comm, stream, {Call::kSend, src, nullptr, count, type, {}, peer, "", {}});
}

EXPORT NcclResult ncclRecv(void* dst, size_t count, NcclType type, int peer, ncclComm* comm, void* stream) {
  return add(comm, stream, {Call::kReceive, nullptr, dst, count, type, {}, peer, "", {}});
}
