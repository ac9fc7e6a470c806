#include "transport/tcp/opening/opener.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "transport/tcp/heartbeats.h"

namespace rr {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr const char* kLate = "no answer. Does a packet filter drop what is sent there?";

// By rank.
std::vector<bool> who_is_encrypted(Encrypt encrypt, const std::vector<TcpAddress>& addresses) {
  std::vector<bool> who;
  for (const TcpAddress& address : addresses) {
    who.push_back(encrypt == Encrypt::kOn || (encrypt == Encrypt::kAuto && !address.is_private()));
  }
  return who;
}

}  // namespace

Opener::Opener(TcpOptions options, Connections& connections, Epoll& events, Hooks hooks)
    : rank_(options.rank),
      data_lost_after_ms_(options.data_lost_after_ms),
      hooks_(std::move(hooks)),
      handshakes_(options.key, rank_, static_cast<int>(options.addresses.size()),
                  who_is_encrypted(options.encrypt, options.addresses)),
      connections_(connections),
      listener_(OwnedFd(std::move(options.listener)), events),
      attempts_(handshakes_, rank_, options.addresses.size(), data_lost_after_ms_, connections, events),
      dialer_(rank_, std::move(options.addresses), options.lost_after_ms, data_lost_after_ms_,
              options.unproven_lost_after_ms) {}

void Opener::dial(const ConnectionPtr& connection) {
  if (connection->state.load(std::memory_order_acquire) != TcpConnection::State::kWanted) return;
  OwnedFd socket = dialer_.dial(*connection);
  if (socket && attempts_.dialled(std::move(socket), connection->peer, connection->channel)) return;
  const int error = errno;
  const std::string why = with_errno("connect");
  failed(connection, {why + more_descriptors(error), now_ns()});
}

bool Opener::look_at(int fd) {
  if (listener_.has(fd)) {
    accept();
  } else if (attempts_.has(fd)) {
    end(attempts_.step(fd));
  } else {
    return false;
  }
  return true;
}

void Opener::accept() {
  for (int accepted = 0; accepted < Listener::kAcceptsAtOnce; ++accepted) {
    OwnedFd socket = listener_.accept();
    // Strangers may hold the last descriptors, and the next one in the queue may be a rank.
    if (!socket && listener_.lacks_descriptor() && attempts_.drop_silent()) {
      listener_.try_again();
      socket = listener_.accept();
    }
    if (!socket) return;
    const int fd = socket.get();
    if (!attempts_.accepted(std::move(socket))) return listener_.has_no_room(errno);
    listener_.has_room();
    end(attempts_.step(fd));  // what it has said already counts for it when room is needed
  }
}

void Opener::look_at_clock(int64_t now_ns) {
  for (const ConnectionPtr& one : dialer_.take_due(now_ns)) dial(one);
  for (Attempts::Ended& late : attempts_.take_late(now_ns)) end(std::move(late));
}

int64_t Opener::next_due_ns() const { return std::min(dialer_.next_due_ns(), attempts_.next_late_ns()); }

void Opener::end(std::optional<Attempts::Ended> ended) {
  if (!ended) return;
  Attempt& attempt = *ended->attempt;
  if (ended->outcome == Attempt::Outcome::kOpen) return opened(attempt);
  if (!attempt.is_dialled()) return;
  const ConnectionPtr connection = connections_.known(attempt.peer(), attempt.channel());
  if (connection == nullptr) return;  // its link has gone
  failed(connection, {attempt.why().empty() ? kLate : attempt.why(), attempt.began_ns,
                      ended->outcome == Attempt::Outcome::kRejected, attempt.has_answer(), attempt.has_timed_out(),
                      attempt.is_proven()});
}

void Opener::opened(Attempt& attempt) {
  if (connections_.use(attempt.peer(), attempt.channel()) != Connections::Use::kFree) return;
  const ConnectionPtr found = connections_.find(attempt.peer(), attempt.channel());
  try {
    hooks_.use(*found, attempt.take_socket(), attempt.session());
  } catch (const std::exception& error) {  // the kernel has no room for this one
    return failed(found, {error.what(), attempt.began_ns});
  }
  dialer_.forget(*found);
}

// An attempt at a connection, which is made again unless that is of no use.
void Opener::failed(const ConnectionPtr& connection, const Dialer::Failure& failure) {
  if (connection->state.load(std::memory_order_acquire) != TcpConnection::State::kWanted) return;
  if (const std::optional<std::string> why = dialer_.failed(connection, failure)) give_up(connection, *why);
}

void Opener::give_up(const ConnectionPtr& connection, const std::string& why) {
  dialer_.forget(*connection);
  hooks_.fail(connection, why);
}

// The peers' kernels have taken what this rank has dialled, and the peers wait for this rank to accept: nobody else
// would end that.
void Opener::fail_those_that_cannot_be_accepted(int64_t now_ns) {
  const std::optional<Listener::Refusal>& refusal = listener_.refusal();
  // By attempts: while this process was stopped it has made none.
  const int64_t limit_ns = data_lost_after_ms_ * kMs;
  if (!refusal || refusal->attempts * (Heartbeats::kPauseMs * kMs) < limit_ns) return;
  errno = refusal->error;
  const std::string me = "rank " + std::to_string(rank_);
  const std::string why = with_errno(me + " cannot accept its connection") + more_descriptors(refusal->error);
  for (const ConnectionPtr& one : connections_.wanted(now_ns - limit_ns)) give_up(one, why);
}

// A stopped process is no lost one, and what else may listen there cannot be told from it.
std::vector<std::string> Opener::new_warnings(int64_t now_ns) {
  std::vector<std::string> warnings;
  for (const int peer : attempts_.take_silent(now_ns)) {
    warnings.push_back("rank " + std::to_string(peer) + "'s port " + dialer_.address_of(peer).text() +
                       " takes connections and says nothing for " + std::to_string(data_lost_after_ms_ / 1000) +
                       " s: is its process stopped, or does something else listen there?");
  }
  return warnings;
}

// What to do about such an error; "" for another.
std::string Opener::more_descriptors(int error) const {
  if (error != EMFILE) return "";
  return "; let the process of rank " + std::to_string(rank_) + " have more file descriptors (ulimit -n)";
}

}  // namespace rr
