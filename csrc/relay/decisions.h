// What the first host has decided, on another host: entries of the log, which this host repeats in its own log, and
// refusals. See sequencer.h.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "relay/operation_frames.h"
#include "relay/own_requests.h"

namespace rr {

class Decisions {
 public:
  Decisions(const ControlSegment& control, const Hosts& hosts, Negotiation& negotiation, OwnRequests& own_requests)
      : control_(control),
        hosts_(hosts),
        negotiation_(negotiation),
        own_requests_(own_requests),
        by_slot_(control.capacity()) {}

  // How many have been taken up: what they say of other hosts' ranks is in the request slots.
  uint64_t count() const { return count_; }
  // False where there is no room for it yet; then it has to be applied again.
  bool apply_entry(FrameParser& frame);
  bool apply_refusal(FrameParser& frame);
  void skip_to(FrameParser& frame);
  // Repeats entries in this host's log as far as there is room; true when something moved.
  bool repeat();
  bool is_empty() const { return ordered_.empty(); }
  // Whether one of those after the first `decisions` was about an operation of this name. Then the requests for it that
  // a leader had when it had taken up so many have been decided about meanwhile.
  bool has_decided_since(uint64_t decisions, const std::string& name) const;

 private:
  struct OrderedEntry {  // that is not in this host's log yet
    uint32_t algorithm = 0;
    RankMask participants;
    std::vector<Ticket> members;
  };
  uint64_t take_number(FrameParser& frame) const;
  std::pair<RankMask, int> take_participants(FrameParser& frame) const;
  Ticket ticket_of(const OperationName& operation, int witness, const FrameParser& frame);
  bool record(Ticket ticket, std::vector<Negotiation::Recorded> requests);
  void finish(const OperationName& operation, Ticket ticket, uint64_t number);

  const ControlSegment& control_;
  const Hosts& hosts_;
  Negotiation& negotiation_;
  OwnRequests& own_requests_;
  std::deque<OrderedEntry> ordered_;
  struct LastDecision {
    std::string name;
    uint64_t number = 0;
  };
  std::vector<LastDecision> by_slot_;  // of the name table
  uint64_t count_ = 0;
};

}  // namespace rr
