// Signs of life between the leaders of hosts, over a connection of their own. Of the network's thread.
//
// A sign is one byte every kPauseMs. What the peer's kernel does not acknowledge within lost_after_ms ends the
// connection, whatever the peer's process does: one that is stopped still has a kernel that acknowledges, and is not
// lost. A connection that ends without a farewell means that the peer is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "os/owned_fd.h"
#include "transport/network.h"

namespace rr {

class Heartbeats {
 public:
  static constexpr int kChannel = 0x7fffffff;
  static constexpr int kPauseMs = 250;

  // forget: called with each descriptor before it is closed.
  Heartbeats(int lost_after_ms, std::function<void(int fd)> forget)
      : lost_after_ms_(lost_after_ms), forget_(std::move(forget)) {}

  void add(int peer, OwnedFd socket);
  bool has(int fd) const { return peers_.count(fd) != 0; }
  // Reads what has come. Here and below: a rank that turns out to be lost is added to `lost`.
  void read(int fd, std::vector<LostRank>& lost);
  // A sign to every peer.
  void send(std::vector<LostRank>& lost);
  // Without a farewell.
  void end() { peers_.clear(); }
  // To those that are there, and to those that are added later.
  void say_farewell();

 private:
  struct Peer {
    int rank;
    OwnedFd socket;
    int64_t heard_ns;
  };
  static void say_farewell(int fd);
  void lose(int fd, const std::string& why, std::vector<LostRank>& lost);

  const int lost_after_ms_;
  const std::function<void(int fd)> forget_;
  bool is_leaving_ = false;
  std::map<int, Peer> peers_;  // by descriptor
};

}  // namespace rr
