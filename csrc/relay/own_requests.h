// What the ranks of this host have announced for the log and the first host has not decided yet.
//
// The first host is told of an operation in one frame, once every rank here has announced it or joined. The other hosts
// hear of it in the first host's decision, and need to know nothing before. But what a leader says of a rank (that it
// waits, has joined or left) can be understood only by a host that knows all that the rank has announced. So before
// that all hosts are shown the rank's undecided requests. They are also shown them when an operation takes long, for
// messages that say who is missing.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "relay/leader_links.h"
#include "relay/operation_frames.h"

namespace rr {

class OwnRequests {
 public:
  // late_s: an operation that has waited so long is shown to all hosts.
  OwnRequests(const ControlSegment& control, const Hosts& hosts, const Negotiation& negotiation, LeaderLinks& links,
              double late_s)
      : control_(control),
        hosts_(hosts),
        negotiation_(negotiation),
        links_(links),
        late_ns_(static_cast<int64_t>(late_s * 1e9)) {}

  // A rank of this host has announced an operation for the log.
  void add(int rank, Ticket ticket);
  // Tells the first host of an operation if all ranks here have announced it.
  void tell(Ticket ticket);
  void tell_all();
  // Shows the other hosts what a rank has announced.
  void show(int rank);
  // Shows them what has waited for long.
  void show_late();
  // The first host has decided about the operation.
  void remove(Ticket ticket);
  // Forgets what a deadlock verdict is about to withdraw: the operation that each rank waits for, and incomplete
  // operations without a name. To be called before the ranks hear of the verdict: they may announce the same again.
  void remove_withdrawn();

 private:
  struct Pending {
    Ticket ticket;
    RankMask announced;  // ranks whose notes have been read
    RankMask told;       // those whose requests the first host has
    RankMask shown;      // and those whose requests all hosts have
    int64_t since_ns = 0;
    uint64_t order = 0;
  };
  std::vector<Pending*> in_order();
  void show(Pending& pending, int rank);
  void send(int host, const Pending& pending, const std::vector<int>& ranks);

  const ControlSegment& control_;
  const Hosts& hosts_;
  const Negotiation& negotiation_;
  LeaderLinks& links_;
  int64_t late_ns_;
  int64_t looked_ns_ = 0;
  uint64_t added_ = 0;
  std::unordered_map<uint64_t, Pending> pending_;  // by request slot
};

}  // namespace rr
