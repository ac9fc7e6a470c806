// Opens this rank's connections: dials peers, accepts those that dial, lets both sides prove who they are, and tries
// again what has failed. Of the network's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "os/epoll.h"
#include "transport/tcp/connections.h"
#include "transport/tcp/opening/attempts.h"
#include "transport/tcp/opening/dialer.h"
#include "transport/tcp/opening/listener.h"
#include "transport/tcp/tcp_network.h"

namespace rr {

class Opener {
 public:
  struct Hooks {
    // Takes an open connection into use. Throws where the kernel has no room for it; then it is tried again.
    std::function<void(TcpConnection& connection, OwnedFd socket, const Session& session)> use;
    // The connection will never be open.
    std::function<void(const ConnectionPtr& connection, const std::string& why)> fail;
  };
  Opener(TcpOptions options, Connections& connections, Epoll& events, Hooks hooks);

  void dial(const ConnectionPtr& connection);
  // The connection is of no use any more.
  void forget(const TcpConnection& connection) { dialer_.forget(connection); }
  // Goes on with a socket of which epoll has told. False: it is somebody else's.
  bool look_at(int fd);
  // Does what is due by now.
  void look_at_clock(int64_t now_ns);
  int64_t next_due_ns() const;  // INT64_MAX: nothing is
  // Accepts again after a time without room for who came. Called once in each pause of the heartbeats.
  void resume() { listener_.resume(); }
  // Fails the wanted connections whose peers have dialled, and wait in vain for this rank to accept.
  void fail_those_that_cannot_be_accepted(int64_t now_ns);
  // Of peers that take connections and say nothing; each once.
  std::vector<std::string> new_warnings(int64_t now_ns);
  void close() { listener_.close(); }  // to who dials this rank
  void clear() { attempts_.clear(); }

 private:
  void accept();
  void end(std::optional<Attempts::Ended> ended);
  void opened(Attempt& attempt);
  void failed(const ConnectionPtr& connection, const Dialer::Failure& failure);
  void give_up(const ConnectionPtr& connection, const std::string& why);
  std::string more_descriptors(int error) const;

  const int rank_;
  const int data_lost_after_ms_;
  const Hooks hooks_;
  const Handshakes handshakes_;
  Connections& connections_;
  Listener listener_;
  Attempts attempts_;
  Dialer dialer_;
};

}  // namespace rr
