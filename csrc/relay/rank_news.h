// What the ranks of this host do, told to the leaders of the other hosts: what they announce, that they wait, have
// joined or left, and that the group has failed.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "relay/relay_deadlock.h"
#include "relay/relay_join.h"
#include "relay/relay_parts.h"

namespace rr {

// Quick requests carry the watermark; it is sent by itself once so many operations have ended without one. Less than
// half of the eager buffers, so that nobody waits for one that is free.
inline constexpr uint64_t kWatermarkStep = kEagerCount / 2 - 1;

class RankNews {
 public:
  RankNews(RelayParts& parts, RelayDeadlock& deadlock, RelayJoin& join, bool do_links_ring)
      : parts_(parts),
        deadlock_(deadlock),
        join_(join),
        sent_(static_cast<size_t>(parts.control.size())),
        do_links_ring_(do_links_ring) {}

  // Puts into the links what is new, unless too much waits in them.
  void collect();
  void send_attendance(int rank);
  // A rank's watermark that is told by itself, if no request carries it before.
  uint64_t watermark_due(int rank) const;
  // All ranks have joined: an epoch begins.
  void forget_joins();
  // See HostRelay.
  bool awaits_others();

 private:
  struct Sent {  // what the others know of a rank here
    uint64_t watermark = 0;
    uint64_t unnamed = 0;  // the tag of its last unnamed quick operation; 0: none
    bool has_joined = false;
    Attendance attendance = Attendance::kPresent;
  };
  void collect_ranks();
  // Passes on the notes up to this number, in their order. False: the rank of the next one has not left it yet.
  bool collect_notes(uint64_t end);
  void send_request(int rank, Ticket ticket);
  void send_joined(int rank);
  void send_failure();  // of the group; once
  void send_quick(int rank, Ticket ticket);
  void remember(int rank, Ticket ticket);
  bool is_choked() const;

  RelayParts& parts_;
  RelayDeadlock& deadlock_;
  RelayJoin& join_;
  std::vector<Sent> sent_;  // by group rank
  const bool do_links_ring_;
  // Quick operations of ranks here that may miss others, where links do not ring: by request slot, their tags.
  std::unordered_map<uint64_t, uint64_t> named_;
};

}  // namespace rr
