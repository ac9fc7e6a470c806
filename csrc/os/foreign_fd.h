// Descriptors of another process on this host, by pidfd_getfd (Linux 5.6).
#pragma once

#include <string>

#include "os/fd.h"

namespace rr {

class ForeignFds {
 public:
  // Throws Error when there is no such process or the kernel lacks the call; `what` names what is being fetched.
  ForeignFds(int pid, std::string what);
  // A close-on-exec duplicate of the process's descriptor. Throws Error; where the kernel forbids it, with what decides
  // about that and how it may be allowed.
  Fd get(int fd) const;

 private:
  int pid_;
  std::string what_;
  Fd pidfd_;
};

// Lets the processes that this one's parent has started, ranks of the same launcher, do that with ours, where the
// kernel allows it to ancestors alone (kernel.yama.ptrace_scope=1). Where it does not ask, nothing happens.
void let_siblings_take_fds();

}  // namespace rr
