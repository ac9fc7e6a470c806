// The log: the order in which every rank of the group executes operations.
//
// Only complete operations enter the log, so any order of submission on any rank is right. Its entries are buckets: an
// open entry takes further fusible members; whoever first wants to execute an entry closes it, once, and only closed
// entries run. On several hosts only the first host's ranks append, in the first host's log, and the other hosts repeat
// its entries in logs of their own.
#pragma once

#include <vector>

#include "collective/select.h"
#include "negotiation/requests.h"

namespace rr {

// Whether the two operations can share an entry, by what was announced of each.
bool can_share_entry(const Signature& first, const Signature& one);

class OperationLog {
 public:
  // forced and fusion_threshold must be the same on all ranks to be of use, but need not be for correct results.
  OperationLog(const GroupSegment& segment, const Requests& requests, Algo forced, size_t fusion_threshold)
      : segment_(segment),
        requests_(requests),
        control_(segment.control),
        hosts_(segment.hosts),
        forced_(forced),
        threshold_(fusion_threshold) {}

  // Appends a complete, feasible operation unless somebody has; false when the log is full for now (execute, then try
  // again).
  bool append(Ticket ticket);
  // The same of an operation that is complete for these participants. The group's lock is held.
  bool append_locked(Ticket ticket, const RankMask& participants);
  // Closes an open entry and writes the algorithm that every rank will run. No effect on a closed one.
  void close(Entry& entry);
  // This rank takes back what it has announced: all ranks end the operation with an error that names it, once they have
  // called it. False, and nothing done, where that is too late, or where other hosts may have been told of it.
  bool withdraw(Ticket ticket);
  // Every participant ends the operation with an error. The first host's leader says so to the other leaders before.
  void refuse(Ticket ticket);
  // Repeats an entry of the first host's log; false while there is no room.
  bool repeat(const std::vector<Ticket>& members, uint32_t algorithm, const RankMask& participants);

 private:
  Entry* open_entry();
  bool fusible(const Entry& entry, const Signature& one, const RankMask& participants, bool registered) const;
  void close_locked(Entry& entry) const;

  const GroupSegment& segment_;
  const Requests& requests_;
  const ControlSegment& control_;
  const Hosts& hosts_;
  const Algo forced_;
  const size_t threshold_;
};

}  // namespace rr
