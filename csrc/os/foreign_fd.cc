#include "os/foreign_fd.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rr {
namespace {

// The same on all architectures; C libraries before 2.31 lack the names.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;

#ifndef PR_SET_PTRACER
constexpr int PR_SET_PTRACER = 0x59616d61;
#endif

}  // namespace

ForeignFds::ForeignFds(int pid, std::string what)
    : pid_(pid), what_(std::move(what)), pidfd_(static_cast<int>(::syscall(kPidfdOpen, pid, 0))) {
  if (!pidfd_) throw Error(with_errno(what_ + ": pidfd_open of process " + std::to_string(pid_)));
}

Fd ForeignFds::get(int fd) const {
  Fd got(static_cast<int>(::syscall(kPidfdGetfd, pidfd_.get(), fd, 0)));
  if (got) return got;
  const int error = errno;
  std::string text =
      with_errno(what_ + ": pidfd_getfd of descriptor " + std::to_string(fd) + " of process " + std::to_string(pid_));
  if (error == EPERM) {
    text +=
        ": the kernel lets a process take another's descriptors only if it may trace it: same user, "
        "kernel.yama.ptrace_scope 0 (or 1 under one launcher), in a container --cap-add=SYS_PTRACE or a seccomp "
        "profile "
        "that allows pidfd_getfd";
  } else if (error == ENOSYS) {
    text += ": Linux 5.6 or newer has it";
  }
  throw Error(text);
}

void let_siblings_take_fds() {
  // EINVAL: no such rule in this kernel.
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(::getppid()), 0, 0, 0);
}

}  // namespace rr
