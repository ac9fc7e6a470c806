// An epoll instance.
#pragma once

#include <sys/epoll.h>

#include <cerrno>

#include "base/errors.h"
#include "os/owned_fd.h"

namespace rr {

class Epoll {
 public:
  Epoll() : fd_(OwnedFd::from([] { return ::epoll_create1(EPOLL_CLOEXEC); })) { check_sys(fd_.get(), "epoll_create1"); }
  int fd() const { return fd_.get(); }
  void add(int fd, uint32_t events) { check_sys(control(EPOLL_CTL_ADD, fd, events), "epoll_ctl"); }
  bool try_add(int fd, uint32_t events) { return control(EPOLL_CTL_ADD, fd, events) == 0; }  // false: with errno
  // Its events carry `tag` in the place of fd. False: with errno.
  bool try_add_tagged(int fd, uint32_t events, void* tag) {
    epoll_data_t data = {};
    data.ptr = tag;
    return control(EPOLL_CTL_ADD, fd, events, data) == 0;
  }
  void change(int fd, uint32_t events) { check_sys(control(EPOLL_CTL_MOD, fd, events), "epoll_ctl"); }
  // Closing the last descriptor of a file removes it too, but a forked child may have another.
  void remove(int fd) { ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }
  // timeout_ms: -1 = none. 0 events also after a signal.
  template <size_t N>
  size_t wait(epoll_event (&events)[N], int timeout_ms) {
    const int n = ::epoll_wait(fd_.get(), events, static_cast<int>(N), timeout_ms);
    if (n < 0 && errno == EINTR) return 0;
    return static_cast<size_t>(check_sys(n, "epoll_wait"));
  }

 private:
  int control(int operation, int fd, uint32_t events) {
    epoll_data_t data = {};
    data.fd = fd;
    return control(operation, fd, events, data);
  }
  int control(int operation, int fd, uint32_t events, epoll_data_t data) {
    epoll_event event = {};
    event.events = events;
    event.data = data;
    return ::epoll_ctl(fd_.get(), operation, fd, &event);
  }

  OwnedFd fd_;
};

}  // namespace rr
