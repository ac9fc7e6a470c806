#include "transport/tcp/closings.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <iterator>

namespace rr {
namespace {

// MSG_TRUNC (tcp(7)) would discard without a copy; thread sanitizers take that for a write to where nothing is.
constexpr size_t kDiscardNbytes = 1 << 16;
constexpr int kDiscardsAtOnce = 64;

// Whether the peer's machine has all that was sent, or will never have it. What a reset connection had still to send
// stays counted (SIOCOUTQ), so its state is looked at as well.
bool has_arrived(int fd) {
  int nbytes = 0;
  if (::ioctl(fd, SIOCOUTQ, &nbytes) < 0 || nbytes == 0) return true;
  tcp_info info = {};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0 || info.tcpi_state == TCP_CLOSE;
}

// Takes what has come, so that the peer's machine has room for the rest: the peer may wait for the same.
void discard_what_has_come(int fd) {
  std::array<std::byte, kDiscardNbytes> room;
  for (int i = 0; i < kDiscardsAtOnce; ++i) {
    if (::recv(fd, room.data(), room.size(), MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace

void Closings::add(OwnedFd socket) {
  const int fd = socket.get();
  ::shutdown(fd, SHUT_WR);
  if (!has_arrived(fd)) sockets_[fd] = std::move(socket);
}

void Closings::look() {
  for (auto one = sockets_.begin(); one != sockets_.end();) {
    discard_what_has_come(one->first);
    one = has_arrived(one->first) ? sockets_.erase(one) : std::next(one);
  }
}

}  // namespace rr
