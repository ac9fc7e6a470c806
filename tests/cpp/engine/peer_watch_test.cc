// How a rank is noticed whose process has ended, or runs another program.
#include "engine/peer_watch.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <string>

#include "doctest/doctest.h"
#include "support/child.h"
#include "support/expect.h"

namespace rr::test {
namespace {

// A child that holds rank 1's Presence in the memory file, behind a large file of its own: the kernel closes that one
// last, and tells the pidfd only then.
class LargeRank {
 public:
  explicit LargeRank(const Fd& memory) {
    constexpr size_t kNbytes = size_t{256} << 20;
    int ends[2];
    check_sys(::pipe2(ends, O_CLOEXEC), "pipe2");
    const Fd is_ready(ends[0]);
    Fd ready(ends[1]);
    pid_ = forked();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const Fd large = create_memfd("large", kNbytes);
      Presence presence;
      const bool is_held = ::posix_fallocate(large.get(), 0, kNbytes) == 0 && presence.hold(memory.get(), 1);
      if (!is_held || ::write(ready.get(), "y", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ready.reset();
    char answer = 0;
    if (::read(is_ready.get(), &answer, 1) != 1) throw Error("the child has no room for its file");
    pidfd_ = Fd(static_cast<int>(check_sys(::syscall(SYS_pidfd_open, pid_, 0), "pidfd_open")));
  }
  ~LargeRank() {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }
  LargeRank(const LargeRank&) = delete;
  LargeRank& operator=(const LargeRank&) = delete;
  int pidfd() const { return pidfd_.get(); }
  void kill() const { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
};

TEST_CASE("a rank whose end takes time has ended, and does not run another program") {
  const Fd memory = create_memfd("test", 4096);
  const LargeRank rank(memory);
  PeerWatch watch({-1, rank.pidfd()}, nullptr);
  REQUIRE(watch.hold(memory.get(), 0, [](int) { return true; }));
  watch.look();
  CHECK(watch.cause_of_death(1) == nullptr);
  rank.kill();
  wait_for([&] {
    watch.look();
    return watch.cause_of_death(1) != nullptr;
  });
  CHECK(std::string(watch.cause_of_death(1)) == kEndedWithoutShutdown);
}

}  // namespace
}  // namespace rr::test
