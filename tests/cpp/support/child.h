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
  Child() {
    int ends[2];
    check_sys(::pipe2(ends, O_CLOEXEC), "pipe2");
    Fd read(ends[0]);
    write_ = Fd(ends[1]);
    pid_ = forked();
    if (pid_ == 0) {
      write_.reset();
      char none;
      ::_exit(::read(read.get(), &none, 1) == 0 ? 0 : 1);
    }
    pidfd_ = Fd(static_cast<int>(check_sys(::syscall(SYS_pidfd_open, pid_, 0), "pidfd_open")));
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pidfd() const { return pidfd_.get(); }
  void end() {
    write_.reset();
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  Fd write_;
  Fd pidfd_;
  pid_t pid_ = -1;
};

}  // namespace rr::test
