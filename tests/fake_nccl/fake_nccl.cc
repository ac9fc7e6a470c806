// NCCL on the CPU, for ranks that are threads or processes: a shared library with NCCL's functions, whose ranks
// exchange their data through files. It is as strict and as slow to be ready as NCCL may be: communicators must not
// block, what is asked for is there only after some looks, an operation waits in its stream until all ranks have come
// to theirs.
#include "fake_nccl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../cpp/reduce_oracle.h"
#include "cuda/nccl.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using rr::NcclConfig;
using rr::NcclOp;
using rr::NcclResult;
using rr::NcclScalar;
using rr::NcclType;
using rr::NcclUniqueId;
using rr_test::Bytes;

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22705
#endif

namespace {

constexpr int kLooks = 3;  // until what was asked for has happened

struct Call {
  enum Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive } kind;
  const void* src;
  void* dst;
  size_t count;
  NcclType type;
  rr::Reduction reduction;
  int peer;
  // when it is issued
  std::string mine;                 // file that this rank writes
  std::vector<std::string> theirs;  // files that it reads, by rank
  bool published = false;
  bool done = false;
};

struct Failure {
  int rank = -1;
  int operation = 0;
  int code = 0;
};

struct Process {
  std::mutex mutex;
  FakeNcclHooks hooks = {};
  bool has_hooks = false;
  std::vector<Failure> failures;
  FakeNcclCounts counts = {};
  std::atomic<bool> abort_blocks{false};
};
Process& process() {
  static Process value;
  return value;
}

NcclResult misuse(const std::string& text) {
  std::fprintf(stderr, "fake NCCL: %s\n", text.c_str());
  const std::lock_guard lock(process().mutex);
  ++process().counts.misuses;
  return NcclResult::kInvalidUsage;
}

std::string folder() {
  const char* text = std::getenv("FAKE_NCCL_DIR");
  return text == nullptr ? "" : text;
}

bool exists(const std::string& path) { return ::access(path.c_str(), R_OK) == 0; }

void publish(const std::string& path, const void* data, size_t nbytes) {
  const std::string temporary = path + ".new";
  const int fd = ::open(temporary.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  const auto* next = static_cast<const char*>(data);
  size_t left = nbytes;
  while (fd >= 0 && left != 0) {
    const ssize_t n = ::write(fd, next, left);
    if (n <= 0) break;
    next += n;
    left -= static_cast<size_t>(n);
  }
  if (fd >= 0) ::close(fd);
  if (fd < 0 || left != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) std::perror("fake NCCL: publish");
}

// False: there is no such file.
bool read(const std::string& path, Bytes& bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  uint8_t part[65536];
  for (ssize_t n = 0; (n = ::read(fd, part, sizeof part)) > 0;) bytes.insert(bytes.end(), part, part + n);
  ::close(fd);
  return true;
}

rr::DType dtype_of(NcclType type) {
  constexpr rr::DType kTypes[] = {rr::DType::kInt8,    rr::DType::kUInt8,   rr::DType::kInt32,   rr::DType::kUInt32,
                                  rr::DType::kInt64,   rr::DType::kUInt64,  rr::DType::kFloat16, rr::DType::kFloat32,
                                  rr::DType::kFloat64, rr::DType::kBFloat16};
  return kTypes[static_cast<int>(type)];
}

void* memory(const void* address) {
  if (process().has_hooks) return process().hooks.memory(address);
  return const_cast<void*>(address);
}

// An operation of a group in a stream.
void enqueue(void* device, void* stream, bool (*action)(void*), void (*free)(void*), void* argument) {
  if (process().has_hooks) return process().hooks.enqueue(device, stream, action, free, argument);
  struct Task {
    bool (*action)(void*);
    void (*free)(void*);
    void* argument;
  };
  auto run = [](void* data) {
    const std::unique_ptr<Task> task(static_cast<Task*>(data));
    while (!task->action(task->argument)) ::usleep(50);
    task->free(task->argument);
  };
  using Launch = int (*)(void*, void (*)(void*), void*);
  static const Launch launch = [] {
    const char* path = std::getenv("RINGREDUCE_CUDA_LIBRARY");
    void* library = ::dlopen(path == nullptr ? "libcuda.so.1" : path, RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : reinterpret_cast<Launch>(::dlsym(library, "cuLaunchHostFunc"));
  }();
  auto task = std::make_unique<Task>(Task{action, free, argument});
  if (launch == nullptr || launch(stream, run, task.get()) != 0) {
    misuse("no stream to launch in");
    return;
  }
  task.release();
}

}  // namespace

struct ncclComm : std::enable_shared_from_this<ncclComm> {
  std::string base;  // of its files
  int rank = 0;
  int size = 0;
  void* device = nullptr;
  std::set<std::string> files;  // own ones
  std::map<NcclOp, std::pair<NcclType, double>> operations;
  int next_operation = 5;
  int issued = 0;                // collectives
  std::map<int, int> sent, got;  // messages by peer
  int executed = 0;              // groups that were asked for
  std::atomic<bool> aborted{false};
  enum { kMaking, kReady, kLaunching, kShrinking, kFinalizing, kFinalized } state = kMaking;
  int looks = 0;
  std::vector<Call> calls;  // of a group that is to be launched
  void* stream = nullptr;
  ncclComm** child_at = nullptr;
  std::shared_ptr<ncclComm> child;

  std::string file(const std::string& what, int r) const { return base + "-" + what + "-" + std::to_string(r); }
  void say(const std::string& what, const void* data = "", size_t nbytes = 0) {
    const std::string path = file(what, rank);
    files.insert(path);
    publish(path, data, nbytes);
  }
  bool all_said(const std::string& what) const {
    for (int r = 0; r < size; ++r) {
      if (!exists(file(what, r))) return false;
    }
    return true;
  }
  void clean() {
    files.erase(file("end", rank));  // others may not have looked yet
    for (const std::string& path : files) ::unlink(path.c_str());
    files.clear();
  }
};

namespace {

std::mutex comms_mutex;
std::map<ncclComm*, std::shared_ptr<ncclComm>> comms;

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

NcclResult failure(const ncclComm& comm) {
  const std::lock_guard lock(process().mutex);
  for (const Failure& failure : process().failures) {
    if (failure.rank == comm.rank && comm.executed >= failure.operation) return static_cast<NcclResult>(failure.code);
  }
  return NcclResult::kSuccess;
}

[[maybe_unused]] void read_failures() {
  const char* text = std::getenv("FAKE_NCCL_FAIL");
  Failure failure;
  if (text == nullptr || std::sscanf(text, "%d:%d:%d", &failure.rank, &failure.operation, &failure.code) != 3) return;
  const std::lock_guard lock(process().mutex);
  process().failures = {failure};
}

size_t itemsize_of(const Call& call) { return rr::itemsize(dtype_of(call.type)); }

void put(const Call& call, const Bytes& bytes, size_t begin, size_t nbytes) {
  std::memcpy(memory(call.dst), bytes.data() + begin, nbytes);
}

// Whether all that the call needs from others is there; then it is done.
bool complete(const ncclComm& comm, Call& call) {
  for (const std::string& path : call.theirs) {
    if (!path.empty() && !exists(path)) return false;
  }
  std::vector<Bytes> inputs(call.theirs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& path = call.theirs[i];
    if (!path.empty() && !read(path, inputs[i])) return false;  // whose it was has aborted since
  }
  const size_t nbytes = call.count * itemsize_of(call);
  switch (call.kind) {
    case Call::kAllReduce:
      put(call, rr_test::oracle(call.reduction, inputs), 0, nbytes);
      break;
    case Call::kReduce:
      if (comm.rank == call.peer) put(call, rr_test::oracle(call.reduction, inputs), 0, nbytes);
      break;
    case Call::kReduceScatter:
      put(call, rr_test::oracle(call.reduction, inputs), static_cast<size_t>(comm.rank) * nbytes, nbytes);
      break;
    case Call::kBroadcast:
      put(call, inputs[static_cast<size_t>(call.peer)], 0, nbytes);
      break;
    case Call::kAllGather: {
      Bytes all;
      for (const Bytes& one : inputs) all.insert(all.end(), one.begin(), one.end());
      put(call, all, 0, all.size());
      break;
    }
    case Call::kSend:
      break;
    case Call::kReceive:
      if (inputs[0].size() == nbytes) {
        put(call, inputs[0], 0, nbytes);
      } else {
        misuse("a message of " + std::to_string(inputs[0].size()) + " bytes where " + std::to_string(nbytes) +
               " are expected");
      }
      ::unlink(call.theirs[0].c_str());
      break;
  }
  return true;
}

struct Group {
  std::shared_ptr<ncclComm> comm;
  std::vector<Call> calls;
};

bool run(void* data) {
  Group& group = *static_cast<Group*>(data);
  if (group.comm->aborted.load()) return true;
  bool all = true;
  for (Call& call : group.calls) {  // everything is sent before anything is waited for
    if (!call.published && !call.mine.empty()) {
      const size_t blocks = call.kind == Call::kReduceScatter ? static_cast<size_t>(group.comm->size) : 1;
      publish(call.mine, memory(call.src), call.count * itemsize_of(call) * blocks);
    }
    call.published = true;
  }
  for (Call& call : group.calls) {
    if (!call.done) call.done = complete(*group.comm, call);
    all &= call.done;
  }
  return all;
}

void launch(ncclComm& comm) {
  auto group = std::make_unique<Group>(Group{comm.shared_from_this(), std::move(comm.calls)});
  comm.calls.clear();
  for (Call& call : group->calls) {
    if (call.kind == Call::kSend || call.kind == Call::kReceive) {
      const bool sends = call.kind == Call::kSend;
      const int number = sends ? comm.sent[call.peer]++ : comm.got[call.peer]++;
      const int from = sends ? comm.rank : call.peer;
      const int to = sends ? call.peer : comm.rank;
      const std::string path =
          comm.base + "-p" + std::to_string(from) + "." + std::to_string(to) + "." + std::to_string(number);
      if (sends) {
        call.mine = path;
      } else {
        call.theirs = {path};
      }
      continue;
    }
    const std::string what = std::to_string(comm.issued++);
    const bool gives = call.kind != Call::kBroadcast || call.peer == comm.rank;
    for (int r = 0; r < comm.size; ++r) {
      const bool given = call.kind != Call::kBroadcast || call.peer == r;
      call.theirs.push_back(given ? comm.file(what, r) : "");
    }
    if (gives) {
      call.mine = comm.file(what, comm.rank);
      comm.files.insert(call.mine);
    }
  }
  ++comm.executed;
  enqueue(
      comm.device, comm.stream, run, [](void* data) { std::unique_ptr<Group>(static_cast<Group*>(data)).reset(); },
      group.release());
}

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

NcclResult add(ncclComm* handle, void* stream, Call call) {
  const auto comm = find(handle);
  if (comm == nullptr) return misuse("a call on a communicator that has ended");
  if (comm->state != ncclComm::kReady) return misuse("a call on a communicator that is not ready");
  Open& open = open_group();
  if (open.depth == 0) return misuse("a call outside a group, which this fake does not know");
  if (open.comm != nullptr && open.comm != handle) return misuse("two communicators in a group");
  if (call.count == 0) return misuse("a call of no elements");
  if (call.peer < 0 || call.peer >= comm->size) return misuse("no such peer");
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

EXPORT void fake_nccl_hooks(const FakeNcclHooks* hooks) {
  const std::lock_guard lock(process().mutex);
  process().has_hooks = hooks != nullptr;
  if (hooks != nullptr) process().hooks = *hooks;
  process().failures.clear();
  process().counts = {};
}

EXPORT void fake_nccl_fail(int rank, int operation, int code) {
  const std::lock_guard lock(process().mutex);
  process().failures.push_back({rank, operation, code});
}

EXPORT void fake_nccl_block_abort(bool blocks) { process().abort_blocks.store(blocks); }

EXPORT FakeNcclCounts fake_nccl_counts() {
  const std::lock_guard lock(process().mutex);
  return process().counts;
}

EXPORT NcclResult ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return NcclResult::kSuccess;
}

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

#ifndef FAKE_NCCL_OLD
EXPORT NcclResult ncclCommInitRankConfig(ncclComm** made, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  if (config->magic != 0xcafebeef || config->size < 20) return NcclResult::kInvalidArgument;
  if (config->blocking != 0) return misuse("a communicator that blocks");
  if (std::strncmp(id.internal, "fake-", 5) != 0 || rank < 0 || rank >= size) return NcclResult::kInvalidArgument;
  void* device = process().has_hooks ? process().hooks.device() : nullptr;
  if (process().has_hooks && device == nullptr) return misuse("the thread has no current device");
  read_failures();
  const auto comm = make(folder() + "/" + id.internal, rank, size, device);
  comm->say("init");
  *made = comm.get();
  return NcclResult::kInProgress;
}
#endif

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
  *result = failure(*comm);
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

EXPORT NcclResult ncclGroupStart() {
  ++open_group().depth;
  return NcclResult::kSuccess;
}

EXPORT NcclResult ncclGroupEnd() {
  Open& open = open_group();
  if (open.depth == 0) return misuse("a group ends that was never started");
  if (--open.depth != 0) return NcclResult::kSuccess;
  const Open group = std::exchange(open, {});
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
