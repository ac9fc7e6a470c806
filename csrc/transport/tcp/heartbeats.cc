#include "transport/tcp/heartbeats.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "os/liveness.h"

namespace rr {
namespace {

constexpr char kSign = '.';
constexpr char kFarewell = '!';
// A peer from whom nothing has come for so long is stopped: it is sent no more signs, because its kernel would run out
// of room for them and the timeout would end the connection. Probes (SO_KEEPALIVE) take no room, and go on.
constexpr int64_t kSilentNs = 60'000'000'000;

}  // namespace

void Heartbeats::add(int peer, OwnedFd socket) {
  const int fd = socket.get();
  check_sys(::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_after_ms_, sizeof lost_after_ms_),
            "setsockopt(TCP_USER_TIMEOUT)");
  const int yes = 1;
  check_sys(::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes), "setsockopt(SO_KEEPALIVE)");
  for (const int option : {TCP_KEEPIDLE, TCP_KEEPINTVL}) {
    check_sys(::setsockopt(fd, IPPROTO_TCP, option, &yes, sizeof yes), "setsockopt(TCP_KEEPIDLE)");
  }
  peers_.insert_or_assign(fd, Peer{peer, std::move(socket), now_ns()});
  if (is_leaving_) say_farewell(fd);
}

void Heartbeats::read(int fd, std::vector<LostRank>& lost) {
  char signs[64];
  for (;;) {
    const ssize_t n = ::recv(fd, signs, sizeof signs, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    // A process that ends before it has read all signs resets the connection.
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return lose(fd, kEndedWithoutShutdown, lost);
    if (n < 0) return lose(fd, with_errno("no sign of life from its host"), lost);
    peers_.at(fd).heard_ns = now_ns();
    if (std::find(signs, signs + n, kFarewell) == signs + n) continue;
    forget_(fd);
    peers_.erase(fd);
    return;
  }
}

void Heartbeats::send(std::vector<LostRank>& lost) {
  std::vector<int> broken;
  if (is_leaving_) return;
  for (auto& [fd, peer] : peers_) {
    if (now_ns() - peer.heard_ns > kSilentNs) continue;
    if (::send(fd, &kSign, 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) continue;
    broken.push_back(fd);
  }
  for (const int fd : broken) {
    read(fd, lost);  // what the peer sent last may say that it leaves
    if (has(fd)) lose(fd, "no sign of life from its host", lost);
  }
}

void Heartbeats::say_farewell() {
  if (std::exchange(is_leaving_, true)) return;
  for (const auto& [fd, peer] : peers_) say_farewell(fd);
}

void Heartbeats::say_farewell(int fd) {
  if (::send(fd, &kFarewell, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) ::shutdown(fd, SHUT_WR);
}

void Heartbeats::lose(int fd, const std::string& why, std::vector<LostRank>& lost) {
  const auto peer = peers_.find(fd);
  // A leader that leaves hears no more of the others, and has nobody to tell.
  if (!is_leaving_) lost.push_back({peer->second.rank, why});
  forget_(fd);
  peers_.erase(peer);
}

}  // namespace rr
