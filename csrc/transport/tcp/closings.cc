#include "transport/tcp/closings.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/clock.h"

namespace rr {
namespace {

// MSG_TRUNC (tcp(7)) would discard without a copy; thread sanitizers take that for a write to where nothing is.
constexpr size_t kDiscardNbytes = 1 << 16;
constexpr int kDiscardsAtOnce = 64;
// One is looked at again after an eighth of the time that it has taken, within these limits.
constexpr int64_t kShare = 8;
constexpr int64_t kLeastNs = 1'000'000;
constexpr int64_t kMostNs = 250'000'000;

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
  const int64_t now = now_ns();
  if (!has_arrived(fd)) closings_[fd] = {std::move(socket), now, now, {}};
}

void Closings::look() {
  const int64_t now = now_ns();
  for (auto one = closings_.begin(); one != closings_.end();) {
    auto& [fd, closing] = *one;
    if (now < closing.due_ns) {
      ++one;
      continue;
    }
    discard_what_has_come(fd);
    const bool is_over = has_arrived(fd) || closing.acknowledged.silent_ns(fd, now) >= lost_after_ns_;
    closing.due_ns = now + std::clamp((now - closing.began_ns) / kShare, kLeastNs, kMostNs);
    one = is_over ? closings_.erase(one) : std::next(one);
  }
}

int64_t Closings::next_look_ns() const {
  int64_t next_ns = INT64_MAX;
  for (const auto& [fd, closing] : closings_) next_ns = std::min(next_ns, closing.due_ns);
  return next_ns;
}

}  // namespace rr
