#include "transport/tcp/opening/listener.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace rr {
namespace {

bool lacks_room(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

// Whether somebody waits to be accepted.
bool is_awaited(int socket) {
  pollfd one = {socket, POLLIN, 0};
  return ::poll(&one, 1, 0) == 1;
}

}  // namespace

OwnedFd Listener::accept() {
  for (;;) {
    OwnedFd accepted =
        OwnedFd::from([this] { return ::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    if (errno == EINTR && !accepted) continue;
    if (accepted) return accepted;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED) {
      refusal_.reset();
      return {};
    }
    const int error = errno;
    // Linux looks for a descriptor before it looks whether somebody has come.
    if (lacks_room(error) && is_awaited(socket_.get())) {
      refuse(error);
    } else {
      pause();
      refusal_.reset();
    }
    return {};
  }
}

void Listener::has_no_room(int error) {
  refuse(error);
  has_turned_away_ = true;
}

void Listener::has_room() {
  refusal_.reset();
  has_turned_away_ = false;
}

void Listener::refuse(int error) {
  pause();
  refusal_ = Refusal{refusal_ ? refusal_->attempts + 1 : 1, error};
}

void Listener::pause() {
  is_paused_ = true;
  events_.change(socket_.get(), 0);
}

void Listener::resume() {
  if (!socket_ || !is_paused_) return;
  is_paused_ = false;
  events_.change(socket_.get(), EPOLLIN);
  // Who had come has gone, unless it was sent away: it comes again.
  if (!has_turned_away_ && !is_awaited(socket_.get())) refusal_.reset();
}

void Listener::try_again() {
  if (--refusal_->attempts == 0) refusal_.reset();
  resume();
}

void Listener::close() {
  if (socket_) events_.remove(socket_.get());
  socket_.reset();
}

}  // namespace rr
