// The links between the leaders of a group's hosts, and what waits in them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "negotiation/control_segment.h"
#include "relay/frames.h"
#include "transport/link.h"

namespace rr {

// A point that all hosts pass together. A leader says when its host has come to the point. What the host's ranks
// announce from then on waits until all hosts have come there.
enum class Phase { kNone, kJoinEnds, kVerdict };

struct LeaderConnection {  // to and from another host's leader
  std::unique_ptr<Link> link;
  FrameWriter out;
  FrameReader in;
  Phase phase = Phase::kNone;                          // the point that its leader says it has come to
  uint64_t decisions = 0;                              // that its leader has taken up before what it says now
  uint64_t decisions_told = 0;                         // that it has been told that this host has taken up
  std::vector<std::pair<int, Attendance>> left_after;  // ranks of its that have left since, and how
};

class LeaderLinks {
 public:
  // links: by host; null for this one.
  explicit LeaderLinks(std::vector<std::unique_ptr<Link>> links) : connections_(links.size()) {
    for (size_t host = 0; host < links.size(); ++host) connections_[host].link = std::move(links[host]);
  }

  int count() const { return static_cast<int>(connections_.size()); }
  bool is_here(int host) const { return (*this)[host].link == nullptr; }
  LeaderConnection& operator[](int host) { return connections_[static_cast<size_t>(host)]; }
  const LeaderConnection& operator[](int host) const { return connections_[static_cast<size_t>(host)]; }

  // fill(writer) puts a frame's fields.
  template <class Fill>
  void send_to(int host, FrameType type, int rank, Fill fill) {
    FrameWriter& out = (*this)[host].out;
    out.begin(type, rank);
    fill(out);
    out.end();
  }
  template <class Fill>
  void send(FrameType type, int rank, Fill fill) {
    for (int host = 0; host < count(); ++host) {
      if (!is_here(host)) send_to(host, type, rank, fill);
    }
  }

  // Sends what the links take; true when something moved.
  bool move() {
    bool moved = false;
    for (LeaderConnection& connection : connections_) {
      if (connection.link == nullptr) continue;
      moved |= connection.out.drain(
          [&](const std::byte* bytes, size_t nbytes) { return connection.link->push(bytes, nbytes); });
    }
    return moved;
  }

  template <class Is>
  bool any_of(Is is) const {
    for (const LeaderConnection& connection : connections_) {
      if (connection.link != nullptr && is(connection)) return true;
    }
    return false;
  }

 private:
  std::vector<LeaderConnection> connections_;  // by host
};

}  // namespace rr
