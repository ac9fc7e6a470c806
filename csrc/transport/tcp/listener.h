// The socket at which other ranks, and strangers, connect to this one. Of the network's thread.
#pragma once

#include <cstdint>
#include <optional>

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
  // Since when the system has refused to accept somebody who has come, and why. Empty: it does not.
  struct Refusal {
    int64_t since_ns;
    int error;  // of errno
  };
  const std::optional<Refusal>& refusal() const { return refusal_; }
  void resume();
  void close();

 private:
  OwnedFd socket_;
  Epoll& events_;
  bool is_paused_ = false;
  std::optional<Refusal> refusal_;
};

}  // namespace rr
