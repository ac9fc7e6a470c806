#include "transport/tcp/session/attempt.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/errors.h"

namespace rr {
namespace {

constexpr const char* kOther = "another connection of these ranks counts";

}  // namespace

Attempt::Attempt(const Handshakes& handshakes, OwnedFd socket, int rank, int peer, int channel)
    : began_ns(now_ns()),
      handshakes_(handshakes),
      socket_(std::move(socket)),
      rank_(rank),
      is_dialled_(true),
      state_(State::kConnecting),
      peer_(peer),
      channel_(channel) {}

Attempt::Attempt(const Handshakes& handshakes, OwnedFd socket, int rank)
    : began_ns(now_ns()),
      handshakes_(handshakes),
      socket_(std::move(socket)),
      rank_(rank),
      is_dialled_(false),
      state_(State::kHello) {}

Attempt::Outcome Attempt::end(Outcome outcome, std::string why) {
  why_ = std::move(why);
  return outcome;
}

Attempt::Outcome Attempt::step(const Choose& choose) {
  for (;;) {
    if (state_ == State::kConnecting) {
      if (const Outcome outcome = connected(); outcome != Outcome::kPending) return outcome;
      if (state_ == State::kConnecting) return Outcome::kPending;
    }
    const State before = state_;
    const size_t expected = state_ == State::kHello       ? sizeof(Hello)
                            : state_ == State::kChallenge ? sizeof(Challenge)
                            : state_ == State::kProof     ? sizeof(Bytes32)
                                                          : sizeof kReady;
    // Not a byte more: what follows the handshake belongs to the link.
    while (arrived_nbytes_ < expected) {
      const ssize_t n = ::recv(socket_.get(), arrived_ + arrived_nbytes_, expected - arrived_nbytes_, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Outcome::kPending;
      if (n < 0) {
        has_timed_out_ = errno == ETIMEDOUT;
        return end(Outcome::kDropped, with_errno("recv"));
      }
      if (n == 0) return end(Outcome::kDropped, "the peer has closed the connection during the handshake");
      arrived_nbytes_ += static_cast<size_t>(n);
    }
    arrived_nbytes_ = 0;
    const Outcome outcome = step_once(choose);
    if (outcome != Outcome::kPending || state_ == before) return outcome;
  }
}

Attempt::Outcome Attempt::step_once(const Choose& choose) {
  switch (state_) {
    case State::kHello:
      return take_hello();
    case State::kChallenge:
      return take_challenge(choose);
    case State::kProof:
      return take_proof(choose);
    case State::kReady:
      return take_ready();
    case State::kConnecting:
      break;
  }
  return Outcome::kPending;
}

Attempt::Outcome Attempt::connected() {
  int error = 0;
  socklen_t nbytes = sizeof error;
  check_sys(::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &nbytes), "getsockopt");
  if (error != 0) {
    errno = error;
    has_timed_out_ = error == ETIMEDOUT;
    return end(Outcome::kDropped, with_errno("connect"));
  }
  sockaddr_storage peer = {};
  socklen_t peer_nbytes = sizeof peer;
  if (::getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&peer), &peer_nbytes) < 0) return Outcome::kPending;
  hello_ = handshakes_.hello(peer_, channel_);
  state_ = State::kChallenge;
  if (!say(&hello_, sizeof hello_)) return end(Outcome::kDropped, with_errno("send"));
  return Outcome::kPending;
}

Attempt::Outcome Attempt::take_hello() {
  std::memcpy(&hello_, arrived_, sizeof hello_);
  const Verdict verdict = handshakes_.judge(hello_);
  if (verdict == Verdict::kWelcome) {
    peer_ = static_cast<int>(hello_.from);
    channel_ = static_cast<int>(hello_.channel);
  }
  challenge_ = handshakes_.answer(hello_, verdict);
  state_ = State::kProof;
  if (!say(&challenge_, sizeof challenge_)) return end(Outcome::kDropped, with_errno("send"));
  return verdict == Verdict::kWelcome ? Outcome::kPending : end(Outcome::kDropped, text_of(verdict));
}

Attempt::Outcome Attempt::take_challenge(const Choose& choose) {
  std::memcpy(&challenge_, arrived_, sizeof challenge_);
  std::string why;
  const std::optional<Bytes32> proof = handshakes_.prove(hello_, challenge_, why);
  if (!proof) return end(Outcome::kRejected, why);
  is_proven_ = true;
  if (rank_ > peer_ && choose(*this) != Choice::kCounts) return end(Outcome::kDropped, kOther);
  if (!say(proof->data(), proof->size())) return end(Outcome::kDropped, with_errno("send"));
  state_ = State::kReady;
  return Outcome::kPending;
}

Attempt::Outcome Attempt::take_proof(const Choose& choose) {
  Bytes32 proof;
  std::memcpy(proof.data(), arrived_, sizeof proof);
  if (!handshakes_.is_proven(hello_, challenge_, proof)) {
    return end(Outcome::kDropped, "it does not have this job's secret");
  }
  const Choice choice = choose(*this);
  if (choice == Choice::kOther) return end(Outcome::kDropped, kOther);
  if (choice == Choice::kGone) {
    say(&kGone, sizeof kGone);
    return end(Outcome::kDropped, "the link has gone here");
  }
  if (!say(&kReady, sizeof kReady)) return end(Outcome::kDropped, with_errno("send"));
  return Outcome::kOpen;
}

Attempt::Outcome Attempt::take_ready() {
  if (arrived_[0] == kGone) return end(Outcome::kRejected, "that rank has no more use for this connection");
  if (arrived_[0] != kReady) return end(Outcome::kRejected, "it has sent no READY");
  return Outcome::kOpen;
}

// A new connection has room for a message of the handshake.
bool Attempt::say(const void* message, size_t nbytes) {
  for (;;) {
    const ssize_t n = ::send(socket_.get(), message, nbytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    return n == static_cast<ssize_t>(nbytes);
  }
}

}  // namespace rr
