#include "transport/tcp/heartbeats.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "os/liveness.h"
#include "os/tcp/tcp_options.h"

namespace rr {
namespace {

constexpr char kSign = '.';
constexpr char kFarewell = '!';
constexpr int kAgainMs = 1000;  // between two times that a sign is sent, where the kernel can be told so

std::string text_of_ns(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

// Whether the peer's kernel has acknowledged all that it was sent.
bool has_acknowledged(int fd) {
  int nbytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &nbytes) == 0 && nbytes == 0;
}

}  // namespace

Heartbeats::Peer::Peer(int peer, OwnedFd connected, const Session& session)
    : rank(peer),
      socket(std::move(connected)),
      writer(session),
      reader(session, "TCP, heartbeats of rank " + std::to_string(peer)),
      heard_ns(now_ns()),
      acknowledged_ns(heard_ns) {}

bool Heartbeats::watch(int fd, int lost_after_ms) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_after_ms, sizeof lost_after_ms) == 0 &&
         retransmit_steadily(fd, kAgainMs) && probe_when_idle(fd, 1);
}

void Heartbeats::add(int peer, OwnedFd socket, const Session& session) {
  const int fd = socket.get();
  if (!watch(fd, lost_after_ms_)) check_sys(-1, "setsockopt, heartbeats");
  events_.add(fd, EPOLLIN | EPOLLRDHUP);
  Peer& added = peers_.try_emplace(fd, peer, std::move(socket), session).first->second;
  expected_.erase(peer);
  if (is_leaving_) say_farewell(added);
}

int Heartbeats::say(Peer& peer, char sign) {
  for (const char next : {peer.begun, sign}) {
    if (next == 0) continue;
    const auto byte = static_cast<std::byte>(next);
    const std::optional<size_t> sent = peer.writer.send(peer.socket.get(), &byte, 1);
    if (!sent) return errno;
    peer.begun = *sent == 0 ? next : char{0};
    if (*sent == 0) return EAGAIN;
  }
  return 0;
}

// The peer has given a sign.
void Heartbeats::hear(Peer& peer, News& news) const {
  const int64_t now = now_ns();
  if (peer.is_named) {
    news.warnings.push_back("rank " + std::to_string(peer.rank) + " is back, after " + text_of_ns(now - peer.heard_ns) +
                            " without a sign of life");
  }
  peer.heard_ns = now;
  peer.is_stalled = peer.is_named = false;
}

// error: what a call has told of the connection; 0: nothing.
void Heartbeats::look(int fd, int error, News& news) {
  Peer& peer = peers_.at(fd);
  for (;;) {
    const ssize_t n = peer.reader.receive(fd);
    const bool is_open = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (is_open && error == 0) break;
    if (n <= 0) return lose(fd, why_lost(fd, error == 0 && n < 0 ? errno : error), news);
    bool is_farewell = false;
    try {
      while (peer.reader.next()) {
        const auto* const signs = reinterpret_cast<const char*>(peer.reader.data());
        is_farewell |= std::find(signs, signs + peer.reader.size(), kFarewell) != signs + peer.reader.size();
        peer.reader.consume(peer.reader.size());
        hear(peer, news);
      }
    } catch (const InternalError& forged) {
      return lose(fd, forged.what(), news);
    }
    if (!is_farewell) continue;
    events_.remove(fd);
    peers_.erase(fd);
    return;
  }
  if (is_leaving_ && !peer.is_told) say_farewell(peer);
}

void Heartbeats::send(News& news) {
  if (is_leaving_) return;
  const int64_t now = now_ns();
  // This process was stopped itself: what its peers have sent meanwhile is not read yet.
  if (now - sent_ns_ > stalled_after_ms_ * kNsPerMs / 3) {
    for (auto& [fd, peer] : peers_) peer.heard_ns = std::max(peer.heard_ns, now);
  }
  sent_ns_ = now;
  for (auto& [fd, peer] : peers_) {
    if (has_acknowledged(fd)) {
      peer.acknowledged_ns = now;
    } else if (now - peer.acknowledged_ns >= acknowledges_ns()) {
      peer.unacknowledged_ns = now;
    }
  }
  look_for_stalled(news);
  std::map<int, int> errors;  // by descriptor
  for (auto& [fd, peer] : peers_) {
    // One sign on its way is enough. Of one packet the kernel sends a copy every 0.2 s, six times; of more than three
    // it doubles the pauses from the first on, and would be silent for 1.6 s when a network that was gone is back.
    if (peer.is_stalled || peer.acknowledged_ns != now) continue;
    const int error = say(peer, kSign);
    if (error != 0 && error != EAGAIN) errors[fd] = error;
  }
  for (const auto& [fd, error] : errors) look(fd, error, news);  // what the peer sent last may say that it leaves
}

// A stalled rank is named by the lowest leader that is not stalled itself: once in a job.
void Heartbeats::look_for_stalled(News& news) {
  const int64_t now = now_ns();
  std::vector<Peer*> stalled;
  int lowest = rank_;
  for (auto& [fd, peer] : peers_) {
    // Where the network was gone, the peer's signs may come later than its acknowledgements.
    const bool acknowledges =
        now - peer.acknowledged_ns < acknowledges_ns() && now - peer.unacknowledged_ns >= acknowledges_ns();
    if (now - peer.heard_ns >= stalled_after_ms_ * kNsPerMs && acknowledges) peer.is_stalled = true;
    if (peer.is_stalled) stalled.push_back(&peer);
    if (!peer.is_stalled) lowest = std::min(lowest, peer.rank);
  }
  if (lowest != rank_) return;
  for (Peer* const peer : stalled) {
    if (std::exchange(peer->is_named, true)) continue;
    news.warnings.push_back("rank " + std::to_string(peer->rank) +
                            " is stalled: its process has given no sign of life for " +
                            text_of_ns(now - peer->heard_ns) +
                            ", although its host acknowledges what it is sent. Is it stopped (SIGSTOP, a debugger), or "
                            "its host out of memory? The job waits for it");
  }
}

void Heartbeats::say_farewell() {
  if (std::exchange(is_leaving_, true)) return;
  for (auto& [fd, peer] : peers_) say_farewell(peer);
}

// A connection without room for it is told of by the epoll when there is some.
void Heartbeats::say_farewell(Peer& peer) {
  const int fd = peer.socket.get();
  const bool is_full = say(peer, kFarewell) == EAGAIN;
  peer.is_told = !is_full;
  if (!is_full) ::shutdown(fd, SHUT_WR);
  events_.change(fd, EPOLLIN | (is_full ? EPOLLOUT : 0U));
}

bool Heartbeats::has_said_farewell() const {
  return is_leaving_ && expected_.empty() &&
         std::all_of(peers_.begin(), peers_.end(), [](const auto& one) { return one.second.is_told; });
}

std::vector<OwnedFd> Heartbeats::take_sockets() {
  std::vector<OwnedFd> sockets;
  for (auto& [fd, peer] : peers_) {
    events_.remove(fd);
    sockets.push_back(std::move(peer.socket));
  }
  peers_.clear();
  return sockets;
}

void Heartbeats::lose(int fd, const std::string& why, News& news) {
  const auto peer = peers_.find(fd);
  // A leader that leaves hears no more of the others, and has nobody to tell.
  if (!is_leaving_) news.lost.push_back({peer->second.rank, why});
  events_.remove(fd);
  peers_.erase(peer);
}

// What this side can know. Nothing is acknowledged: either nothing arrives from the peer any more, be it that its host
// is gone or that only this direction is dead; or something does, so its host lives and does not get what it is sent.
std::string Heartbeats::why_lost(int fd, int error) const {
  if (error == 0) return kEndedWithoutShutdown;
  // A process that ends before it has read all signs resets the connection, and so may a firewall on the way.
  if (error == ECONNRESET || error == EPIPE) {
    errno = error;
    return with_errno(std::string(kEndedWithoutShutdown) + "; or something between the hosts has reset the connection");
  }
  tcp_info info = {};
  socklen_t size = sizeof info;
  std::string why = "no sign of life from its host";
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
    const int64_t silent_ms = info.tcpi_last_ack_recv;  // of packets of any kind, also of repeated ones
    const std::string silence = text_of_ns(silent_ms * kNsPerMs);
    if (silent_ms < lost_after_ms_ * 3 / 4) {
      why = "its host no longer gets what rank " + std::to_string(rank_) + " sends: for " +
            text_of_ns(lost_after_ms_ * kNsPerMs) +
            " it has acknowledged nothing, although packets from it arrive, the last " + silence +
            " ago. The network is dead in one direction, from rank " + std::to_string(rank_) + " to it";
    } else {
      why += ": nothing has arrived from it for " + silence;
    }
  }
  errno = error;
  return with_errno(why);
}

}  // namespace rr
