// A descriptor that a forked child does not keep: a connection ends with its process, although a child of that lives
// on.
//
// fork() waits while one is made, or closed: none is open that the child does not know of.
#pragma once

#include <utility>

#include "os/fd.h"

namespace rr {

class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(Fd fd);
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd() { reset(); }

  // From a system call that returns a new descriptor, or fails with -1 and errno; then empty, with that errno. No
  // process forks meanwhile, so the call must not block.
  template <class Open>
  static OwnedFd from(Open open) {
    OwnedFd made;
    const NoFork held;
    const int fd = open();
    if (fd >= 0) made.fd_ = noted(fd);
    return made;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();  // leaves errno as it is

 private:
  class NoFork {
   public:
    NoFork();
    ~NoFork();
    NoFork(const NoFork&) = delete;
    NoFork& operator=(const NoFork&) = delete;
  };
  static int noted(int fd);  // the same; closes it where there is no memory to note it

  int fd_ = -1;
};

}  // namespace rr
