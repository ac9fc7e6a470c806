// One attempt at a connection: a socket, and how far the handshake on it has come. Of the network's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "os/owned_fd.h"
#include "transport/tcp/session/handshake.h"

namespace rr {

class Attempt {
 public:
  enum class Outcome {
    kPending,
    kOpen,      // the peer has the key, and the connection counts
    kDropped,   // the peer went away or is a stranger, the network fails, or another connection counts
    kRejected,  // the peer says no, as it will the next time
  };
  enum class Choice {
    kCounts,  // from then on, until the attempt ends: no other one of these ranks on this channel does
    kOther,   // another one counts
    kGone,    // none will: the link has gone here
  };
  // Asked by who decides, and by every server.
  using Choose = std::function<Choice(const Attempt& attempt)>;

  // Towards a peer; the socket is being connected.
  Attempt(const Handshakes& handshakes, OwnedFd socket, int rank, int peer, int channel);
  // Of an unknown peer, which has dialled.
  Attempt(const Handshakes& handshakes, OwnedFd socket, int rank);

  // Goes as far as it can without waiting.
  Outcome step(const Choose& choose);
  bool is_dialled() const { return is_dialled_; }
  // For epoll.
  bool wants_to_write() const { return state_ == State::kConnecting; }
  int fd() const { return socket_.get(); }
  OwnedFd take_socket() { return std::move(socket_); }
  Session session() const { return handshakes_.session(hello_, challenge_, is_dialled_); }  // of one that is open
  // Of an attempt that was dialled, or is open.
  int peer() const { return peer_; }
  int channel() const { return channel_; }
  // Whether the peer, or its kernel, has answered. Of one that was dialled.
  bool has_answer() const { return state_ != State::kConnecting && !has_timed_out_; }
  // The kernel has waited for an answer for as long as Heartbeats::watch() says.
  bool has_timed_out() const { return has_timed_out_; }
  // The peer has shown that it has the key. Of one that was dialled.
  bool is_proven() const { return is_proven_; }
  // A stranger that has said nothing yet.
  bool is_silent() const { return state_ == State::kHello; }
  // It has been dialled, and the peer's kernel answers: it is not late, however long its process is stopped. Where the
  // kernel answers no more, this one's ends the connection.
  bool is_watched() const { return is_dialled_ && state_ != State::kConnecting; }
  // Why it was dropped or rejected.
  const std::string& why() const { return why_; }
  const int64_t began_ns;

 private:
  enum class State { kConnecting, kHello, kChallenge, kProof, kReady };
  Outcome end(Outcome outcome, std::string why);
  Outcome step_once(const Choose& choose);
  Outcome connected();
  Outcome take_hello();
  Outcome take_challenge(const Choose& choose);
  Outcome take_proof(const Choose& choose);
  Outcome take_ready();
  bool say(const void* message, size_t nbytes);

  const Handshakes& handshakes_;
  OwnedFd socket_;
  const int rank_;
  const bool is_dialled_;
  State state_;
  int peer_ = -1;
  int channel_ = -1;
  Hello hello_ = {};
  Challenge challenge_ = {};
  std::byte arrived_[sizeof(Hello)];
  size_t arrived_nbytes_ = 0;
  bool has_timed_out_ = false;
  bool is_proven_ = false;
  std::string why_;
};

}  // namespace rr
