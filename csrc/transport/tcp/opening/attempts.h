// The attempts at connections that are under way: those that this rank has dialled, and those of unknown peers that
// have dialled it. Of the network's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "os/epoll.h"
#include "transport/tcp/connections.h"
#include "transport/tcp/session/attempt.h"

namespace rr {

class Attempts {
 public:
  // An attempt at its end, out of the epoll.
  struct Ended {
    std::unique_ptr<Attempt> attempt;
    Attempt::Outcome outcome;
  };

  // size: ranks of the job. late_after_ms: a handshake may take so long.
  Attempts(const Handshakes& handshakes, int rank, size_t size, int late_after_ms, Connections& connections,
           Epoll& events);

  // False, with errno: the kernel cannot watch the socket, which is closed.
  bool dialled(OwnedFd socket, int peer, int channel);
  bool accepted(OwnedFd socket);
  // Ends the oldest stranger that has said nothing, for a descriptor. False: there is none.
  bool drop_silent();
  bool has(int fd) const { return under_way_.count(fd) != 0; }
  // Goes on with one of which epoll has told.
  std::optional<Ended> step(int fd);
  // Those that have taken too long; they are dropped.
  std::vector<Ended> take_late(int64_t now_ns);
  // Peers whose kernel has taken a connection of this rank on which nobody has said anything for too long; each once.
  std::vector<int> take_silent(int64_t now_ns);
  int64_t next_late_ns() const;  // INT64_MAX: none
  void clear() { under_way_.clear(); }

 private:
  Attempt::Choice choose(const Attempt& attempt);
  bool watch(std::unique_ptr<Attempt> attempt, uint32_t events);
  void make_room();
  Ended end(int fd, Attempt::Outcome outcome);

  const Handshakes& handshakes_;
  const int rank_;
  const size_t unproven_most_;
  const int64_t late_after_ns_;
  Connections& connections_;
  Epoll& events_;
  std::map<int, std::unique_ptr<Attempt>> under_way_;  // by descriptor
  std::map<std::pair<int, int>, int> chosen_;          // descriptors of those that count, by peer and channel
  std::set<int> told_silent_;                          // peers
};

}  // namespace rr
