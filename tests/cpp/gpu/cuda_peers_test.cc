// Device memory between processes, over the fake driver: exports here, imports in a process that this test starts.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <set>

#include "doctest/doctest.h"
#include "fakes/fake_cuda.h"

namespace rr {
namespace {

using test::FakeCuda;
using test::Pieces;
using test::Program;

constexpr const char* kPeerVariable = "RR_TEST_CUDA_PEER_FD";
constexpr size_t kMost = 3;  // mappings of the process that is started

std::byte pattern(size_t allocation, size_t i) { return static_cast<std::byte>(allocation * 31 + i * 7 % 251); }

void fill(cu::DevicePtr at, size_t allocation, size_t nbytes) {  // nothing is under way
  for (size_t i = 0; i < nbytes; ++i) host_ptr(at)[i] = pattern(allocation, i);
}

DeviceExport exported(Device& device, const std::byte* data, size_t nbytes, uint64_t& offset) {
  std::shared_ptr<void> keep;  // there is room for all
  return device.exported(data, nbytes, offset, keep);
}

template <class T>
void send(int fd, const T& data) {
  if (::write(fd, &data, sizeof data) != static_cast<ssize_t>(sizeof data)) throw Error(with_errno("write"));
}

template <class T>
T receive(int fd) {
  T data;
  if (::read(fd, &data, sizeof data) != static_cast<ssize_t>(sizeof data)) throw Error("the other process has gone");
  return data;
}

struct Message {
  DeviceExport made;
  uint64_t offset = 0;
  uint64_t nbytes = 0;
};

struct Answer {
  uint64_t wrong = 0;
  char error[600] = {};
};

// This program again, running one test case; its end of a socket is told by the environment.
class Peer {
 public:
  explicit Peer(const char* fail = "") {
    int ends[2];
    check_sys(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), "socketpair");
    ours_ = Fd(ends[0]);
    Fd theirs(ends[1]);
    ::fcntl(ours_.get(), F_SETFD, FD_CLOEXEC);
    ::setenv(kPeerVariable, std::to_string(theirs.get()).c_str(), 1);
    ::setenv("FAKE_CUDA_FAIL", fail, 1);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execl("/proc/self/exe", "rr_tests", "--test-case=cuda peers: the process that is started", "--no-version",
              "--minimal", nullptr);
      ::_exit(127);
    }
    ::unsetenv(kPeerVariable);
    ::unsetenv("FAKE_CUDA_FAIL");
  }
  ~Peer() {
    ours_.reset();
    int status = 0;
    ::waitpid(pid_, &status, 0);
    CHECK(status == 0);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Answer ask(const Message& message) const {
    send(ours_.get(), message);
    return receive<Answer>(ours_.get());
  }

 private:
  Fd ours_;
  pid_t pid_ = -1;
};

// Forgets the mapping and wants it again: before it is closed, so that nothing is opened, and in the other turns after.
void check_forgetting(CudaImports& imports, const DeviceExport& made, const std::byte* base) {
  auto& fake = FakeCuda::get();
  static size_t turns = 0;
  const auto calls = [&] { return fake.calls("cuIpcOpenMemHandle") + fake.calls("cuMemAddressReserve"); };
  const auto closings = [&] { return fake.calls("cuIpcCloseMemHandle") + fake.calls("cuMemAddressFree"); };
  const uint64_t opened = calls(), closed = closings();
  const size_t forgotten = imports.forgotten();
  imports.forget(made.uid);
  imports.forget(made.uid);
  if (imports.forgotten() != forgotten + 1) throw Error("it was not forgotten once");
  const bool closes = turns++ % 2 == 1;
  if (closes) imports.close_forgotten();
  if (closings() - closed != (closes ? forgotten + 1 : 0)) throw Error("mappings were closed too early, or not at all");
  const std::byte* const again = imports.imported(made);
  if (calls() - opened != (closes ? 1 : 0)) throw Error("it was opened again, or not");
  if (!closes && again != base) throw Error("it lies elsewhere");
  if (imports.forgotten() != (closes ? 0 : forgotten)) throw Error("it is to be closed though it is in use");
}

// Maps what it is told of, compares it with the pattern of the number that its first byte says, and adds one to all.
TEST_CASE("cuda peers: the process that is started") {
  const char* const fd_text = std::getenv(kPeerVariable);
  if (fd_text == nullptr) return;
  const Fd fd(std::atoi(fd_text));
  auto& fake = FakeCuda::get();
  if (const char* fail = std::getenv("FAKE_CUDA_FAIL")) fake.fail(fail);
  CudaContext context(fake.driver, 0);
  const CudaContext::Current current(context);
  std::optional<CudaImports> imports(std::in_place, context, kMost);
  while (true) {
    Message message;
    if (::read(fd.get(), &message, sizeof message) != static_cast<ssize_t>(sizeof message)) break;
    Answer answer;
    try {
      const auto* const before = imports->imported(message.made);
      std::byte* const base = imports->imported(message.made);
      if (base != before) throw Error("mapped twice");
      check_forgetting(*imports, message.made, base);
      std::byte* const data = imports->imported(message.made) + message.offset;
      const auto allocation = static_cast<size_t>(data[0]);
      for (size_t i = 0; i < message.nbytes; ++i) {
        if (data[i] != static_cast<std::byte>(allocation + i * 7 % 251)) ++answer.wrong;
        data[i] = static_cast<std::byte>(static_cast<unsigned char>(data[i]) + 1);
      }
    } catch (const Error& error) {
      std::strncpy(answer.error, error.what(), sizeof answer.error - 1);
    }
    send(fd.get(), answer);
  }
  imports.reset();
  CHECK(fake.calls("cuIpcCloseMemHandle") + fake.calls("cuMemAddressFree") > 0);
}

void check_peer_reads_and_writes(const Peer& peer, const DeviceExport& made, uint64_t offset, cu::DevicePtr at,
                                 size_t allocation, size_t nbytes) {
  fill(at, allocation, nbytes);
  const Answer answer = peer.ask({made, offset, nbytes});
  CHECK_MESSAGE(answer.error[0] == 0, answer.error);
  CHECK(answer.wrong == 0);
  size_t wrong = 0;
  for (size_t i = 0; i < nbytes; ++i) {
    if (static_cast<unsigned char>(host_ptr(at)[i]) !=
        static_cast<unsigned char>(static_cast<unsigned char>(pattern(allocation, i)) + 1)) {
      ++wrong;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda peers: another process maps allocations, as many as it may") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  std::vector<cu::DevicePtr> at;
  {
    const Peer peer;
    for (size_t i = 0; i <= kMost; ++i) at.push_back(program.allocate(10000 + 1000 * i));
    for (size_t round = 0; round < 2; ++round) {
      for (size_t i = 0; i < kMost; ++i) {
        uint64_t offset = 0;
        const DeviceExport made = exported(*device, host_ptr(at[i] + 512), 9000, offset);
        CHECK(made.uid != 0);
        CHECK(made.fd == -1);
        CHECK(made.nbytes == 10000 + 1000 * i);
        CHECK(offset == 512);
        check_peer_reads_and_writes(peer, made, offset, at[i] + 512, 0, 9000);
      }
      // Which of those that there are is in use nobody knows there.
      uint64_t offset = 0;
      const std::string error = peer.ask({exported(*device, host_ptr(at[kMost]), 9000, offset), 0, 9000}).error;
      CHECK(error.find("3 allocations of other processes are mapped already") != std::string::npos);
    }
  }
  for (const cu::DevicePtr address : at) fake.driver->mem_free(address);
}

TEST_CASE("cuda peers: what the owner has freed makes way for what is at its address now") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  const Peer peer;
  std::set<cu::DevicePtr> addresses;
  for (size_t round = 0; round < 10; ++round) {
    const cu::DevicePtr at = program.allocate(7000);
    uint64_t offset = 0;
    check_peer_reads_and_writes(peer, exported(*device, host_ptr(at), 7000, offset), 0, at, 0, 7000);
    addresses.insert(at);
    fake.driver->mem_free(at);
  }
  CHECK(addresses.size() < 10);
}

TEST_CASE("cuda peers: another process maps what lies in several pieces") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  const Peer peer;
  const Pieces pieces(fake, 3);
  const size_t begin = Pieces::kPiece - 4096;
  uint64_t offset = 0;
  const DeviceExport all = exported(*device, host_ptr(pieces.base() + begin), Pieces::kPiece + 8192, offset);
  CHECK(all.fd >= 0);
  CHECK(all.nbytes == 3 * Pieces::kPiece);
  CHECK(offset == begin);
  check_peer_reads_and_writes(peer, all, offset, pieces.base() + begin, 0, Pieces::kPiece + 8192);
  // One piece alone is another export, and the same when it is asked for again.
  const DeviceExport one = exported(*device, host_ptr(pieces.base() + Pieces::kPiece), 100, offset);
  CHECK(one.nbytes == Pieces::kPiece);
  CHECK(offset == 0);
  CHECK(one.uid != all.uid);
  check_peer_reads_and_writes(peer, one, 0, pieces.base() + Pieces::kPiece, 0, 100);
  CHECK(exported(*device, host_ptr(pieces.base() + Pieces::kPiece + 200), 100, offset).uid == one.uid);
  // A pid that is somebody else's by now, or in another namespace.
  DeviceExport lost = one;
  lost.uid = 12345;
  CHECK(std::string(peer.ask({lost, 0, 100}).error).find("is not the one that exported it") != std::string::npos);
  lost.fd = 9999;
  const std::string error = peer.ask({lost, 0, 100}).error;
  CHECK(error.find("pidfd_getfd of descriptor 9999 of process") != std::string::npos);
  CHECK(error.find("RINGREDUCE_GPU_PATH=nccl or staged") != std::string::npos);
}

TEST_CASE("cuda peers: an export stays while it is kept, and what finds no room cannot be mapped for now") {
  auto& fake = FakeCuda::get();
  Program program(fake);
  const CudaContext context(fake.driver, 0);
  const CudaContext::Current current(context);
  CudaExports exports(context, 6);  // descriptors, of which an export of two pieces needs three
  const Peer peer;
  const Pieces first(fake, 2), second(fake, 2), third(fake, 2);
  constexpr size_t kAll = 2 * Pieces::kPiece;
  uint64_t offset = 0;
  std::shared_ptr<void> kept, other, none;
  const DeviceExport made = exports.exported(host_ptr(first.base()), kAll, offset, kept);
  CHECK(made.uid != 0);
  for (int turn = 0; turn < 3; ++turn) {  // only one of these has room beside it
    for (const Pieces* const pieces : {&second, &third}) {
      CHECK(exports.exported(host_ptr(pieces->base()), kAll, offset, none).uid != 0);
      none.reset();
    }
  }
  check_peer_reads_and_writes(peer, made, 0, first.base(), 0, 100);
  CHECK(exports.exported(host_ptr(second.base()), kAll, offset, other).uid != 0);
  CHECK(exports.exported(host_ptr(third.base()), kAll, offset, none).uid == 0);
  CHECK((none == nullptr));
  CHECK(exports.exported(host_ptr(first.base()), kAll, offset, none).uid == made.uid);
  none.reset();
  kept.reset();
  const DeviceExport now = exports.exported(host_ptr(third.base()), kAll, offset, none);
  CHECK(now.uid != 0);
  check_peer_reads_and_writes(peer, now, 0, third.base(), 0, 100);
}

TEST_CASE("cuda peers: what the driver refuses is an error with a way out") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  const cu::DevicePtr at = program.allocate(5000);
  uint64_t offset = 0;
  const DeviceExport made = exported(*device, host_ptr(at), 5000, offset);
  fill(at, 0, 5000);
  {
    const Peer peer("cuIpcOpenMemHandle:1:217,cuIpcOpenMemHandle:1:201");
    const std::string error = peer.ask({made, 0, 100}).error;
    CHECK(error.find("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED (217)") != std::string::npos);
    CHECK(error.find("mapping 5000 bytes of device memory of process") != std::string::npos);
    CHECK(error.find("RINGREDUCE_GPU_PATH=nccl or staged") != std::string::npos);
    CHECK(std::string(peer.ask({made, 0, 100}).error).find("CUDA_ERROR_INVALID_CONTEXT (201)") != std::string::npos);
    CHECK(peer.ask({made, 0, 100}).wrong == 0);
  }
  fake.driver->mem_free(at);
}

TEST_CASE("cuda peers: memory freed and allocated anew is another allocation") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  std::set<uint64_t> uids;
  std::set<cu::DevicePtr> addresses;
  for (int round = 0; round < 20; ++round) {
    const cu::DevicePtr at = program.allocate(4096);
    uint64_t offset = 0;
    uids.insert(exported(*device, host_ptr(at), 4096, offset).uid);
    CHECK(exported(*device, host_ptr(at + 100), 1, offset).uid ==
          *uids.find(exported(*device, host_ptr(at), 0, offset).uid));
    addresses.insert(at);
    fake.driver->mem_free(at);
  }
  CHECK(uids.size() == 20);
  CHECK(addresses.size() < 20);
}

TEST_CASE("cuda peers: memory that nobody can map says so, and what is no device memory is refused") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  uint64_t offset = 0;
  cu::DevicePtr pool = 0;
  FakeCuda::check(fake.cuMemAllocAsync(&pool, 100, nullptr), "cuMemAllocAsync");
  CHECK(exported(*device, host_ptr(pool), 100, offset).uid == 0);
  CHECK_THROWS_AS(device->imported(exported(*device, host_ptr(pool), 100, offset)), InvalidArgumentError);
  fake.cuMemFreeAsync(pool, nullptr);
  {
    const Pieces private_pieces(fake, 2, false);
    CHECK(exported(*device, host_ptr(private_pieces.base()), 100, offset).uid == 0);
  }
  const cu::DevicePtr at = program.allocate(100);
  fake.fail("cuIpcGetMemHandle:1:801");
  CHECK(exported(*device, host_ptr(at), 100, offset).uid == 0);
  fake.driver->mem_free(at);
  float here = 0;
  CHECK_THROWS_WITH_AS(exported(*device, reinterpret_cast<std::byte*>(&here), 4, offset),
                       doctest::Contains("not (or not all) in device memory"), InvalidArgumentError);
  const Program other(fake, 1);
  cu::DevicePtr far = 0;
  FakeCuda::check(fake.driver->mem_alloc(&far, 100), "cuMemAlloc");
  CHECK_THROWS_WITH_AS(exported(*device, host_ptr(far), 100, offset), doctest::Contains("memory of GPU 1"),
                       InvalidArgumentError);
  fake.driver->mem_free(far);
}

TEST_CASE("cuda peers: within a process memory is where it is, and another GPU gets access to it") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const auto other = fake.device(1);
  std::byte* const data = device->allocate(5000);
  uint64_t offset = 0;
  const DeviceExport made = exported(*device, data + 300, 1000, offset);
  CHECK(offset == 300);
  CHECK(device->imported(made) == data);
  const uint64_t enabled = fake.calls("cuCtxEnablePeerAccess");
  CHECK(other->imported(made) == data);
  CHECK(other->imported(made) == data);
  CHECK(fake.calls("cuCtxEnablePeerAccess") == enabled + 1);
  other->forget(made.uid);
  fake.fail("cuCtxEnablePeerAccess:1:217");
  CHECK_THROWS_WITH_AS(other->imported(made), doctest::Contains("RINGREDUCE_GPU_PATH=nccl or staged"), InternalError);
  fake.fail("cuCtxEnablePeerAccess:1:704");  // it had been already
  CHECK(other->imported(made) == data);
  device->release(data);
}

}  // namespace
}  // namespace rr
