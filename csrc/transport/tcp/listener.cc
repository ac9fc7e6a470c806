#include "transport/tcp/listener.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/clock.h"

namespace rr {

OwnedFd Listener::accept() {
  for (;;) {
    OwnedFd accepted =
        OwnedFd::from([this] { return ::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    if (errno == EINTR && !accepted) continue;
    if (accepted || errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED) {
      refusal_.reset();
      return accepted;
    }
    refusal_ = Refusal{refusal_ ? refusal_->since_ns : now_ns(), errno};
    is_paused_ = true;
    events_.change(socket_.get(), 0);
    return {};
  }
}

void Listener::resume() {
  if (!socket_ || !is_paused_) return;
  is_paused_ = false;
  events_.change(socket_.get(), EPOLLIN);
}

void Listener::close() {
  if (socket_) events_.remove(socket_.get());
  socket_.reset();
}

}  // namespace rr
