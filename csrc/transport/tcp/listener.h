// The socket at which other ranks, and strangers, connect to this one. Of the network's thread.
#pragma once

#include "os/epoll.h"
#include "os/owned_fd.h"

namespace rr {

class Listener {
 public:
  // So many at once, so that a flood of strangers does not keep the thread from heartbeats.
  static constexpr int kAcceptsAtOnce = 64;

  Listener(OwnedFd socket, Epoll& events) : socket_(std::move(socket)), events_(events) {
    events_.add(socket_.get(), EPOLLIN);
  }
  bool has(int fd) const { return socket_ && fd == socket_.get(); }
  // Empty: nobody more has come, or no descriptor was left; then it listens again after resume().
  OwnedFd accept();
  void resume();
  void close();

 private:
  OwnedFd socket_;
  Epoll& events_;
  bool is_paused_ = false;
};

}  // namespace rr
