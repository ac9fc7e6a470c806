// The seam between the engine and what connects hosts.
#pragma once

#include <climits>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/link.h"
#include "transport/mpi/device_messages.h"

namespace rr {

// The channels of a group: those of its links, and one between the leaders of its hosts, which carries control.
constexpr int channel_of(int group, int channel) { return group * (kChannels + 1) + channel; }
constexpr int control_channel_of(int group) { return channel_of(group, kChannels); }
constexpr int group_of(int channel) { return channel / (kChannels + 1); }
constexpr bool carries_control(int channel) { return channel % (kChannels + 1) == kChannels; }

struct LostRank {
  int world_rank;
  std::string why;  // to follow "lost rank 3: "
};

// A network's own thread. It notices what arrives while nobody looks at the links, and which hosts are lost.
class NetworkReader {
 public:
  virtual ~NetworkReader() = default;
  // ring: called on the reader's thread when something may have arrived while somebody watches, or a rank is lost; it
  // wakes this rank's threads, and must not block.
  virtual void start(std::function<void()> ring) = 0;
  // Ranks of other hosts whose end is to be noticed, and which notice this one's. May be called again.
  virtual void monitor(const std::vector<int>& world_ranks) = 0;
  // Around the sleep of a thread that has been counted as a sleeper and has looked at the links since: what arrives
  // after that look is rung for.
  virtual void begin_watch() = 0;
  virtual void end_watch() = 0;
  // The ranks that are lost since the last call, each reported once.
  virtual std::vector<LostRank> newly_lost() = 0;
  // What the user should know, since the last call. Whoever writes it may have to wait; the reader never does.
  virtual std::vector<std::string> new_warnings() = 0;
  // Says to the other ranks that this one leaves on purpose, and calls ring no more.
  virtual void leave() = 0;
};

// How ranks of other hosts are reached.
struct Network {
  std::string name;          // of the transport, for messages
  std::vector<int> host_of;  // by world rank, equal on the same host; empty: all ranks are on one
  // The link to a rank on another host; both ends name the same channel. Called under no lock.
  std::function<std::unique_ptr<Link>(int world_rank, int channel)> link;
  // Lets it work on what has been pushed; true while some of that is on its way. May be empty.
  std::function<bool()> progress;
  // Between GPUs, if it takes their addresses; else null.
  std::shared_ptr<DeviceMessages> device_messages = nullptr;
  // Null: the links ring nobody, and who waits looks at them again and again.
  std::shared_ptr<NetworkReader> reader = nullptr;
  // Groups with higher ids have no channels.
  int most_group = INT_MAX / (kChannels + 1) - 1;
};

}  // namespace rr
