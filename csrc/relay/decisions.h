// What the first host has decided, on another host: entries of the log, which this host repeats in its own log, and
// refusals. See sequencer.h.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "relay/operation_frames.h"
#include "relay/own_requests.h"

namespace rr {

class Decisions {
 public:
  Decisions(const ControlSegment& control, const Hosts& hosts, Negotiation& negotiation, OwnRequests& own_requests,
            LeaderLinks& links)
      : control_(control), hosts_(hosts), negotiation_(negotiation), own_requests_(own_requests), links_(links) {}

  // How many have been taken up: what they say of other hosts' ranks is in the request slots.
  uint64_t count() const { return links_.decisions(); }
  // Takes up an entry, a refusal, or a number of what is neither for this host. Returns the number of the decision,
  // which may have been taken up before; 0: there is no room for it yet, and it has to be applied again.
  uint64_t apply(FrameParser& frame);
  // Repeats entries in this host's log as far as there is room; true when something moved.
  bool repeat();
  bool is_empty() const { return ordered_.empty(); }
  // Whether a decision with a number above `decisions` was about an operation of this name. A leader that had taken up
  // only `decisions` may still send requests for it; they are out of date.
  bool has_decided_since(uint64_t decisions, const std::string& name) const;

 private:
  struct OrderedEntry {  // that is not in this host's log yet
    uint32_t algorithm = 0;
    RankMask participants;
    std::vector<Ticket> members;
  };
  void check_first(const FrameParser& frame, const OrderedEntry& entry, const Signature& own) const;
  bool apply_entry(FrameParser& frame, uint64_t number);
  bool apply_refusal(FrameParser& frame, uint64_t number);
  void forget_old();
  std::pair<RankMask, int> take_participants(FrameParser& frame) const;
  Ticket ticket_of(const OperationName& operation, int witness, const FrameParser& frame);
  bool record(Ticket ticket, std::vector<Negotiation::Recorded> requests);
  void finish(const OperationName& operation, Ticket ticket, uint64_t number);

  const ControlSegment& control_;
  const Hosts& hosts_;
  Negotiation& negotiation_;
  OwnRequests& own_requests_;
  LeaderLinks& links_;
  std::deque<OrderedEntry> ordered_;
  std::unordered_map<std::string, uint64_t> last_by_name_;  // numbers
  size_t forget_at_ = 0;                                    // when there are more names than that
};

}  // namespace rr
