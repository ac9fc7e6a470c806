// Processes that a test starts by fork().
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "base/errors.h"
#include "os/fd.h"

namespace rr::test {

// fork(), after which no child has anything to print.
inline pid_t forked() {
  std::fflush(nullptr);
  return ::fork();
}

// A child that waits until its end of a pipe is closed.
class Child {
 public:
  // begin(), in the child, comes before the constructor returns; throws where begin() is false. What begin() opens is
  // to stay open in descriptors: the child ends by _exit().
  template <class Begin>
  explicit Child(const Begin& begin) {
    int to_child[2], from_child[2];
    check_sys(::pipe2(to_child, O_CLOEXEC), "pipe2");
    check_sys(::pipe2(from_child, O_CLOEXEC), "pipe2");
    Fd orders(to_child[0]), answers(from_child[0]), answer(from_child[1]);
    write_ = Fd(to_child[1]);
    pid_ = forked();
    if (pid_ == 0) {
      write_.reset();
      char none = 0;
      if (!begin() || ::write(answer.get(), &none, 1) != 1) ::_exit(1);
      ::_exit(::read(orders.get(), &none, 1) == 0 ? 0 : 1);
    }
    pidfd_ = Fd(static_cast<int>(check_sys(::syscall(SYS_pidfd_open, pid_, 0), "pidfd_open")));
    answer.reset();
    char none = 0;
    if (::read(answers.get(), &none, 1) != 1) throw Error("a child of the test could not begin");
  }
  Child() : Child([] { return true; }) {}
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pidfd() const { return pidfd_.get(); }
  void begin_to_end() { write_.reset(); }
  void end() {
    begin_to_end();
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  Fd write_;
  Fd pidfd_;
  pid_t pid_ = -1;
};

}  // namespace rr::test
