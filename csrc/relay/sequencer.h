// The first host's part in the order of the log: which operations of the log all ranks have announced, and what the
// other hosts are to do with them.
//
// The requests of all ranks come together in the first host's segment, where operations become complete as on one host.
// Each other host is sent one decision for each: an entry of the log, with what its ranks have to know of the others'
// requests, or a refusal, with those requests that went to the first host alone (quick ones have been sent to every
// host by their own leaders). Decisions are numbered. A leader tells the others how many decisions it has taken up
// before it sends what its ranks did next. Whoever has taken up fewer lets those frames wait.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "relay/leader_links.h"
#include "relay/own_requests.h"

namespace rr {

class Sequencer {
 public:
  Sequencer(const ControlSegment& control, const Hosts& hosts, Negotiation& negotiation, OwnRequests& own_requests,
            LeaderLinks& links)
      : control_(control), hosts_(hosts), negotiation_(negotiation), own_requests_(own_requests), links_(links) {}

  // Some rank has announced the operation for the log.
  void add(Ticket ticket);
  // A rank has announced something in the request slot: decides about the operation if all have.
  void look(Ticket ticket);
  // The same of all operations: some become complete when a rank joins, and some have found the log full.
  void look_at_all();
  bool is_log_full() const { return is_log_full_; }
  // Closes the entries of the log as soon as they are seen, so whatever is complete by then shares one, and sends them.
  void send_log();
  bool has_sent(uint64_t entry) const { return entry < log_sent_; }

 private:
  struct Undecided {
    Ticket ticket;
    int missing = 0;  // each lower rank has announced it, or what comes after it, or has joined
  };
  bool is_over(Undecided& one);
  bool is_anybody_missing(Undecided& one) const;
  bool decide(Undecided& one);
  template <class Fill>
  void send_decision(FrameType type, const RankMask& participants, Fill fill);
  void send_entry(const Entry& entry);
  void send_refusal(Ticket ticket, const RankMask& participants, const std::vector<int>& logged);

  const ControlSegment& control_;
  const Hosts& hosts_;
  Negotiation& negotiation_;
  OwnRequests& own_requests_;
  LeaderLinks& links_;
  std::unordered_map<uint64_t, Undecided> undecided_;  // by request slot
  uint64_t log_sent_ = 0;
  uint64_t decisions_ = 0;
  bool is_log_full_ = false;
};

}  // namespace rr
