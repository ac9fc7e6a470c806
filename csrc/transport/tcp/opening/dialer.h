// Where this rank dials, and when again after an attempt that has failed. Of the network's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/owned_fd.h"
#include "transport/tcp/connections.h"
#include "transport/tcp/heartbeats.h"
#include "transport/tcp/tcp_address.h"

namespace rr {

class Dialer {
 public:
  // addresses: by rank. After so long without an answer no connection is to be had: one of heartbeats, or of data; or
  // after so long in which whoever answers there has not shown that it has the job's key.
  Dialer(int rank, std::vector<TcpAddress> addresses, int lost_after_ms, int data_lost_after_ms,
         int unproven_lost_after_ms)
      : rank_(rank),
        addresses_(std::move(addresses)),
        lost_after_ms_(lost_after_ms),
        data_lost_after_ms_(data_lost_after_ms),
        unproven_lost_after_ms_(unproven_lost_after_ms) {}

  // A socket that is being connected. Empty, with errno, if that is impossible now.
  OwnedFd dial(const TcpConnection& connection) const;
  struct Failure {
    std::string why;
    int64_t began_ns;
    bool is_final = false;       // another attempt would end in the same way
    bool has_answer = false;     // of the peer, or its kernel: then the peer is not lost, however long it takes
    bool has_timed_out = false;  // the kernel has waited for as long as the limit
    bool is_proven = false;      // whoever has answered has the job's key
  };
  // Of an attempt at a connection that is still wanted. Empty: it is due later; else why it will never be open.
  std::optional<std::string> failed(const ConnectionPtr& connection, const Failure& failure);
  // The connection is there, or of no use any more.
  void forget(const TcpConnection& connection) { tries_.erase({connection.peer, connection.channel}); }
  const TcpAddress& address_of(int peer) const { return addresses_[static_cast<size_t>(peer)]; }
  // Those to be dialled now.
  std::vector<ConnectionPtr> take_due(int64_t now_ns);
  int64_t next_due_ns() const;  // INT64_MAX: none

 private:
  struct Tries {
    int count = 0;
    int unanswered = 0;               // in a row
    int64_t unanswered_since_ns = 0;  // the first of them began
    int unproven = 0;                 // ends of connections by who has not shown the job's key, in a row
    int64_t unproven_since_ns = 0;    // the first of them
    int declined = 0;                 // ends by a peer that has shown the key, in a row
    int64_t declined_since_ns = 0;    // the first of them
  };
  struct Redial {
    ConnectionPtr connection;
    int64_t at_ns;
  };

  // Linux before 6.5 sends SYNs after 0, 1 and 3 s: the third one must come in time after an outage of 2 s.
  static constexpr int kConnectingMs = 1200;
  int limit_ms(const TcpConnection& connection) const {
    return connection.channel == Heartbeats::kChannel ? lost_after_ms_ + kConnectingMs : data_lost_after_ms_;
  }

  const int rank_;
  const std::vector<TcpAddress> addresses_;
  const int lost_after_ms_;
  const int data_lost_after_ms_;
  const int unproven_lost_after_ms_;
  std::map<std::pair<int, int>, Tries> tries_;  // attempts that have failed, by peer and channel
  std::vector<Redial> redials_;
};

}  // namespace rr
