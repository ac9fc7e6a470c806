#include "transport/tcp/opening/dialer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"

namespace rr {
namespace {

// A process that was stopped for a while has not seen so many.
constexpr int kLeastUnanswered = 5;
constexpr int kLeastUnproven = 5;
constexpr int kLeastDeclined = 20;
constexpr int64_t kRedialNs = 50'000'000;  // after the first attempt that was dropped; doubled up to
constexpr int64_t kRedialMostNs = 400'000'000;

}  // namespace

OwnedFd Dialer::dial(const TcpConnection& connection) const {
  const TcpAddress& to = address_of(connection.peer);
  OwnedFd socket = OwnedFd::from(
      [&] { return ::socket(to.socket_address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!socket) return {};
  const int fd = socket.get();
  // From the address at which this rank listens: what leaves by another interface may not come back.
  const TcpAddress from = addresses_[static_cast<size_t>(rank_)].with_any_port();
  if (from.socket_address.ss_family == to.socket_address.ss_family) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
    if (::bind(fd, from.get(), from.nbytes) < 0) return {};
  }
  if (!Heartbeats::watch(fd, limit_ms(connection))) return {};
  if (::connect(fd, to.get(), to.nbytes) < 0 && errno != EINPROGRESS && errno != EINTR) return {};
  return socket;
}

std::optional<std::string> Dialer::failed(const ConnectionPtr& connection, const Failure& failure) {
  const int64_t now = now_ns();
  Tries& tries = tries_[{connection->peer, connection->channel}];
  if (failure.has_answer) tries.unanswered = 0;
  if (!failure.has_answer && tries.unanswered++ == 0) tries.unanswered_since_ns = failure.began_ns;
  // By the ends of several: one that was stopped for a minute before it said anything, or whose peer was, says nothing.
  if (failure.is_proven) tries.unproven = 0;
  if (failure.has_answer && !failure.is_proven && tries.unproven++ == 0) tries.unproven_since_ns = now;
  const bool is_stranger = failure.has_answer && tries.unproven >= kLeastUnproven &&
                           now - tries.unproven_since_ns >= unproven_lost_after_ms_ * int64_t{1'000'000};
  // A peer ends a connection so where another of the two counts: that one is open soon, or given up after the limit.
  const bool was_declined = failure.has_answer && failure.is_proven;
  if (!was_declined) tries.declined = 0;
  if (was_declined && tries.declined++ == 0) tries.declined_since_ns = now;
  const bool is_declined =
      tries.declined >= kLeastDeclined && now - tries.declined_since_ns >= 2 * data_lost_after_ms_ * int64_t{1'000'000};
  // Refused is no answer: the peer may have ended, or a packet filter refuses what only the peer may begin.
  const bool is_refused = !failure.has_answer && tries.unanswered >= kLeastUnanswered &&
                          now - tries.unanswered_since_ns >= limit_ms(*connection) * int64_t{1'000'000};
  const bool is_unanswered = !failure.has_answer && failure.has_timed_out;
  if (!failure.is_final && !is_refused && !is_unanswered && !is_stranger && !is_declined) {
    const int64_t pause_ns = std::min(kRedialMostNs, kRedialNs << std::min(tries.count++, 8));
    redials_.push_back({connection, now + pause_ns});
    return {};
  }
  std::string cure;
  if (is_refused)
    cure = "; has that rank ended? If not, may this host reach that port? RINGREDUCE_PORTS names those to open";
  if (is_unanswered) cure = "; may this host reach that port? RINGREDUCE_PORTS names those to open";
  if (is_stranger) {
    cure = "; nobody there has shown within " + std::to_string(unproven_lost_after_ms_ / 1000) +
           " s that it has this job's secret: does something else listen there, or end connections on the way?";
  }
  if (is_declined) {
    cure = "; it ends each one for " + std::to_string(2 * data_lost_after_ms_ / 1000) +
           " s, as if it held another one, which has been lost here: does something end connections on the way?";
  }
  return "no connection to " + address_of(connection->peer).text() + ": " + failure.why + cure;
}

std::vector<ConnectionPtr> Dialer::take_due(int64_t now_ns) {
  std::vector<ConnectionPtr> due;
  for (size_t i = 0; i < redials_.size();) {
    if (redials_[i].at_ns > now_ns) {
      ++i;
      continue;
    }
    due.push_back(std::move(redials_[i].connection));
    redials_[i] = std::move(redials_.back());
    redials_.pop_back();
  }
  return due;
}

int64_t Dialer::next_due_ns() const {
  int64_t next_ns = INT64_MAX;
  for (const Redial& redial : redials_) next_ns = std::min(next_ns, redial.at_ns);
  return next_ns;
}

}  // namespace rr
