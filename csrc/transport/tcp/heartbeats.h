// Signs of life between the leaders of hosts, over a connection of their own. Of the network's thread.
//
// A sign is a record of one byte, every kPauseMs unless the last one is still on its way, so that nobody else can say
// that a rank lives or leaves. What the peer's kernel does not acknowledge within lost_after_ms ends the connection. A
// process that is stopped still has a kernel that acknowledges: it is not lost but stalled, and is sent no more signs,
// for which its kernel would run out of room; probes (SO_KEEPALIVE) take no room, and go on. A connection that ends
// without a farewell means that the peer is lost.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "os/epoll.h"
#include "os/owned_fd.h"
#include "transport/network.h"
#include "transport/tcp/session/records.h"

namespace rr {

class Heartbeats {
 public:
  static constexpr int kChannel = 0x7fffffff;
  static constexpr int kPauseMs = 250;
  static constexpr int64_t kNsPerMs = 1'000'000;
  static constexpr int kStalledAfterMs = 3000;

  struct News {
    std::vector<LostRank> lost;
    std::vector<std::string> warnings;  // a peer is stalled, or is back
  };

  // Has the kernel end a connection whose peer's kernel acknowledges nothing for so long, whether or not there is
  // something to acknowledge. False, with errno: it cannot.
  static bool watch(int fd, int lost_after_ms);

  // events: has the descriptors of the connections.
  Heartbeats(int rank, int lost_after_ms, Epoll& events, int stalled_after_ms = kStalledAfterMs)
      : rank_(rank), lost_after_ms_(lost_after_ms), stalled_after_ms_(stalled_after_ms), events_(events) {}

  // There will be a connection to this peer: add() or forget() follows.
  void expect(int peer) { expected_.insert(peer); }
  void forget(int peer) { expected_.erase(peer); }
  void add(int peer, OwnedFd socket, const Session& session);
  bool has(int fd) const { return peers_.count(fd) != 0; }
  // Reads what has come.
  void look(int fd, News& news) { look(fd, 0, news); }
  // A sign to every peer; and who has given none.
  void send(News& news);
  // To those that are there, and to those that are added later.
  void say_farewell();
  bool has_said_farewell() const;  // to all that are there or expected
  std::vector<OwnedFd> take_sockets();

 private:
  struct Peer {
    Peer(int rank, OwnedFd socket, const Session& session);
    int rank;
    OwnedFd socket;
    RecordWriter writer;
    RecordReader reader;
    int64_t heard_ns;
    int64_t acknowledged_ns;        // when all that was sent was seen to be acknowledged
    int64_t unacknowledged_ns = 0;  // when a sign was seen that has not been for acknowledges_ns()
    char begun = 0;                 // the sign of whose record the kernel has taken a part
    bool is_stalled = false;
    bool is_named = false;  // as stalled, by this rank
    bool is_told = false;   // that this rank leaves
  };
  // 0: it is sent. Else errno, EAGAIN where there is no room.
  static int say(Peer& peer, char sign);
  // A host that acknowledges does so within this time.
  int64_t acknowledges_ns() const { return stalled_after_ms_ * kNsPerMs / 3; }
  void hear(Peer& peer, News& news) const;
  void look(int fd, int error, News& news);
  void look_for_stalled(News& news);
  void say_farewell(Peer& peer);
  void lose(int fd, const std::string& why, News& news);
  std::string why_lost(int fd, int error) const;

  const int rank_;
  const int lost_after_ms_;
  const int stalled_after_ms_;
  Epoll& events_;
  bool is_leaving_ = false;
  int64_t sent_ns_ = 0;        // when send() was called last
  std::map<int, Peer> peers_;  // by descriptor
  std::set<int> expected_;
};

}  // namespace rr
