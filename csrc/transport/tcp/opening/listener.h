// The socket at which other ranks, and strangers, connect to this one. Of the network's thread.
#pragma once

#include <cerrno>
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
  // Somebody has come, and the process or its host had no room for him at so many attempts, one for each resume().
  struct Refusal {
    int attempts;
    int error;  // of errno
  };
  const std::optional<Refusal>& refusal() const { return refusal_; }  // empty: all are accepted
  // The last one that accept() has returned was of use; or it could not be kept, for this error.
  void has_room();
  void has_no_room(int error);
  void resume();
  // After accept() had no descriptor, and one has been freed: as if it had not been called.
  void try_again();
  bool lacks_descriptor() const { return refusal_ && (refusal_->error == EMFILE || refusal_->error == ENFILE); }
  void close();

 private:
  void refuse(int error);
  void pause();

  OwnedFd socket_;
  Epoll& events_;
  bool is_paused_ = false;
  bool has_turned_away_ = false;  // since the last one of use
  std::optional<Refusal> refusal_;
};

}  // namespace rr
