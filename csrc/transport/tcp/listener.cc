#include "transport/tcp/listener.h"

#include <sys/socket.h>

#include <cerrno>

namespace rr {

OwnedFd Listener::accept() {
  for (;;) {
    OwnedFd accepted =
        OwnedFd::from([this] { return ::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    if (accepted) return accepted;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ECONNABORTED) {
      is_paused_ = true;
      events_.change(socket_.get(), 0);
    }
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
