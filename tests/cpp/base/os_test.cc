// What the core asks of the kernel: which processes have died, where registered memory lies, what a fork inherits.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "doctest/doctest.h"
#include "os/liveness.h"
#include "os/mapping.h"
#include "os/owned_fd.h"
#include "os/presence.h"
#include "os/segments.h"
#include "os/tcp/arrival_times.h"
#include "support/child.h"
#include "support/expect.h"
#include "support/tcp_ranks.h"

namespace rr::test {
namespace {

TEST_CASE("a process that ends is reported once, by its rank") {
  Child first;
  Child second;
  Liveness liveness({-1, first.pidfd(), second.pidfd()});  // a rank does not watch itself
  CHECK(liveness.newly_dead().empty());
  second.end();
  CHECK(liveness.newly_dead() == std::vector<int>{2});
  CHECK(liveness.newly_dead().empty());
  first.end();
  CHECK(liveness.newly_dead() == std::vector<int>{1});
  CHECK(liveness.newly_dead().empty());
}

TEST_CASE("a process that ends is reported in a job of more ranks than a process may open files") {
  Child child;
  std::vector<int> pidfds(10000, -1);  // ranks of other hosts
  pidfds[5000] = child.pidfd();
  Liveness liveness(pidfds);
  rlimit usual = {};
  check_sys(::getrlimit(RLIMIT_NOFILE, &usual), "getrlimit");
  const rlimit low = {1000, usual.rlim_max};
  check_sys(::setrlimit(RLIMIT_NOFILE, &low), "setrlimit");
  CHECK(liveness.newly_dead().empty());
  child.end();
  CHECK(liveness.newly_dead() == std::vector<int>{5000});
  check_sys(::setrlimit(RLIMIT_NOFILE, &usual), "setrlimit");
}

// Its pidfd stays as it is.
TEST_CASE("a process that runs another program is gone") {
  const Fd memory = create_memfd("test", 4096);
  Presence presence;
  REQUIRE(presence.hold(memory.get(), 0));
  int to_child[2], from_child[2];
  check_sys(::pipe2(to_child, O_CLOEXEC), "pipe2");
  check_sys(::pipe2(from_child, O_CLOEXEC), "pipe2");
  Fd orders(to_child[1]), answers(from_child[0]);
  const pid_t pid = forked();
  if (pid == 0) {
    Presence own;
    char order = own.hold(memory.get(), 1) ? 'y' : 'n';
    ::dup2(to_child[0], 0);
    orders.reset();
    if (::write(from_child[1], &order, 1) != 1 || ::read(0, &order, 1) != 1) ::_exit(1);
    ::execl("/bin/sh", "sh", "-c", "read line", nullptr);
    ::_exit(1);
  }
  ::close(to_child[0]);
  ::close(from_child[1]);
  char answer = 0;
  CHECK(::read(answers.get(), &answer, 1) == 1);
  CHECK(answer == 'y');
  CHECK_FALSE(presence.is_gone(1));
  CHECK(presence.is_gone(2));  // which nobody has held
  CHECK(::write(orders.get(), "x", 1) == 1);
  wait_for([&] { return presence.is_gone(1); });
  CHECK(::waitpid(pid, nullptr, WNOHANG) == 0);
  orders.reset();
  int status = 0;
  CHECK(::waitpid(pid, &status, 0) == pid);
  CHECK_FALSE(Presence().is_gone(1));  // one that holds nothing cannot know
}

TEST_CASE("a buffer is registered when all of it lies in the own region") {
  constexpr size_t kNbytes = 8192;
  const Fd file = create_memfd("registered", 3 * kNbytes);
  const Segment segment(file.get(), 7, 1, 3, kNbytes);
  SegmentRegistry registry;
  CHECK(registry.find(segment.own(), 1).uid == 0);
  registry.add(&segment);
  for (const size_t offset : {size_t{0}, size_t{4}, kNbytes - 4}) {
    CAPTURE(offset);
    const MemoryRef all = registry.find(segment.own() + offset, kNbytes - offset);
    CHECK(all.uid == 7);
    CHECK(all.region == 1);
    CHECK(all.offset == offset);
    CHECK(registry.address(all) == segment.own() + offset);
    CHECK(registry.find(segment.own() + offset, kNbytes - offset + 1).uid == 0);
  }
  CHECK(registry.find(segment.own() - 1, 8).uid == 0);
  CHECK(registry.find(segment.at(2), 8).uid == 0);  // another rank's
  CHECK(registry.address({7, 2, 0, 16}) == segment.at(2) + 16);
  CHECK(registry.address({7, 3, 0, 0}) == nullptr);
  CHECK(registry.address({8, 1, 0, 0}) == nullptr);
  registry.remove(&segment);
  CHECK(registry.find(segment.own(), 1).uid == 0);
}

TEST_CASE("bytes have arrived when the kernel had them, not when a thread reads them") {
  const auto [sender, receiver] = connected_pair();
  const int fd = receiver.get();
  ArrivalTimes times;
  // Nobody reads for some time after the bytes are there.
  const auto receive = [&, out = sender.get()](size_t nbytes, size_t room) {
    const std::vector<std::byte> bytes(nbytes);
    CHECK(::send(out, bytes.data(), nbytes, 0) == static_cast<ssize_t>(nbytes));
    pollfd wanted = {fd, POLLIN, 0};
    CHECK(::poll(&wanted, 1, -1) == 1);
    const int64_t readable_ns = now_ns();
    wait_for([&] { return now_ns() > readable_ns + 1'000'000; });
    std::vector<std::byte> into(room);
    CHECK(times.receive(fd, into.data(), room) == static_cast<ssize_t>(nbytes));
    return readable_ns;
  };
  receive(8, 100);
  CHECK(times.latest_ns() == 0);
  times.note(fd, true);
  wait_for([&] {
    receive(8, 100);
    return times.latest_ns() != 0;  // the kernel begins in its own time
  });
  for (int i = 0; i < 3; ++i) {
    int64_t before_ns = 0;
    int64_t readable_ns = 0;
    wait_for([&] {
      before_ns = now_ns();
      readable_ns = receive(8, 100);
      return times.latest_ns() != 0;  // no time is known where a thread lost its core, or somebody set the clock
    });
    CHECK(times.latest_ns() >= before_ns);
    CHECK(times.latest_ns() <= readable_ns + 1000);  // as far as two clocks are read apart
  }
  receive(8, 8);  // where there is no room for more, more may have come
  CHECK(times.latest_ns() == 0);
  times.note(fd, false);
  receive(8, 100);
  CHECK(times.latest_ns() == 0);
}

// Whether a forked child has the pages: mincore() fails where nothing is mapped.
bool child_has(const Mapping& mapping) {
  const pid_t pid = forked();
  if (pid == 0) {
    unsigned char present;
    ::_exit(::syscall(SYS_mincore, mapping.data(), 4096, &present) == 0 ? 1 : 0);
  }
  int status = 0;
  check_sys(::waitpid(pid, &status, 0), "waitpid");
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

TEST_CASE("a forked child has registered memory, and no control segment to write into") {
  const Fd control = create_memfd("control", 4096);
  const Fd registered = create_memfd("registered", 4096);
  CHECK_FALSE(child_has(Mapping(control.get(), OnFork::kDrop)));
  CHECK(child_has(Mapping(registered.get(), OnFork::kInherit)));
}

TEST_CASE("a mapping that is kept stays when its owner goes, also when that was moved") {
  const Fd file = create_memfd("kept", 4096);
  std::byte* data = nullptr;
  {
    const Mapping kept(file.get(), OnFork::kDrop);
    data = kept.data();
    kept.keep();
  }
  unsigned char present = 0;
  CHECK(::syscall(SYS_mincore, data, 4096, &present) == 0);
  ::munmap(data, 4096);
  {
    Mapping first(file.get(), OnFork::kDrop);
    data = first.data();
    first.keep();
    const Mapping second(std::move(first));
  }
  CHECK(::syscall(SYS_mincore, data, 4096, &present) == 0);
  ::munmap(data, 4096);
}

// Whether a child that is forked now has the descriptor.
bool child_has_descriptor(const int& fd) {
  const pid_t pid = forked();
  if (pid == 0) ::_exit(::fcntl(fd, F_GETFD) < 0 ? 0 : 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WEXITSTATUS(status) == 1;
}

TEST_CASE("a forked child does not have an owned descriptor, and closes no other one for it") {
  const auto make = [] { return ::eventfd(0, EFD_CLOEXEC); };
  OwnedFd owned = OwnedFd::from(make);
  OwnedFd taken{Fd(make())};
  REQUIRE(owned);
  CHECK_FALSE(child_has_descriptor(owned.get()));
  CHECK_FALSE(child_has_descriptor(taken.get()));
  const OwnedFd moved = std::move(owned);
  CHECK_FALSE(child_has_descriptor(moved.get()));
  const int number = taken.get();
  taken.reset();
  const Fd other(::fcntl(moved.get(), F_DUPFD_CLOEXEC, number));
  REQUIRE(other.get() == number);
  CHECK(child_has_descriptor(number));
}

std::atomic<bool> is_forking{false};

TEST_CASE("a fork waits for a descriptor that is being made") {
  const OwnedFd first = OwnedFd::from([] { return ::eventfd(0, EFD_CLOEXEC); });
  // After OwnedFd's own, and so called before it.
  static const int registered = ::pthread_atfork([] { is_forking = true; }, nullptr, nullptr);
  REQUIRE(registered == 0);
  is_forking = false;
  std::atomic<int> made{-1};
  std::atomic<bool> has_returned{false};
  std::thread maker([&] {
    const OwnedFd owned = OwnedFd::from([&] {
      made = ::eventfd(0, EFD_CLOEXEC);
      while (!is_forking) std::this_thread::yield();
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // a fork that does not wait comes now
      return made.load();
    });
    while (!has_returned) std::this_thread::yield();
  });
  while (made < 0) std::this_thread::yield();
  const int fd = made;
  CHECK_FALSE(child_has_descriptor(fd));
  has_returned = true;
  maker.join();
}

}  // namespace
}  // namespace rr::test
