// Joining: a rank that has joined announces nothing more until all have joined. What the others announce meanwhile is
// complete without it. The ranks that have joined, from the first join to the last, are an epoch.
//
// On several hosts each has its own joined ranks and epoch. Who is seen to have joined has announced all it will,
// because its leader tells both in order; so the participants of an operation are the same everywhere. An epoch ends on
// a host when the leaders of all have said that their ranks have drained (relay/relay_join.cc).
#pragma once

#include <cstdint>
#include <optional>

#include "negotiation/names.h"
#include "negotiation/notes.h"
#include "negotiation/segment/group_segment.h"
#include "negotiation/segment/ticket.h"

namespace rr {

struct JoinResult {
  int last_joined = 0;
  uint64_t unnamed = 0;  // every rank's counter continues here
};

class Joins {
 public:
  Joins(const GroupSegment& segment, const Names& names, Notes& notes)
      : segment_(segment), names_(names), notes_(notes), control_(segment.control), hosts_(segment.hosts) {}

  // Marks this rank as joined. Returns the epoch that ends when every rank has joined and drained.
  uint64_t join(uint64_t unnamed_counter) { return record(segment_.rank, unnamed_counter, std::nullopt); }
  // The same of a rank elsewhere, by the leader of a host. stamp: of the rank's own host (RankLine::joined); nothing:
  // this is the host, which makes it.
  uint64_t record(int rank, uint64_t unnamed_counter, std::optional<uint32_t> stamp);
  // The largest stamp of a join that this host has seen, or been told of by the first host: what a rank here does next
  // comes after that join.
  uint32_t latest_stamp() const;
  // The first host has decided about an operation when it had seen a join with this stamp.
  void see(uint32_t stamp);
  // This rank has nothing pending any more; on one host the last one to say so finishes the epoch.
  void drained();
  void finish();
  bool is_finished(uint64_t epoch) const;
  JoinResult result(uint64_t epoch) const;
  // Whether the ranks that have joined have read what a named operation would overwrite in its request slot.
  bool have_read(Ticket ticket) const;

 private:
  int last_joined() const;

  const GroupSegment& segment_;
  const Names& names_;
  Notes& notes_;
  const ControlSegment& control_;
  const Hosts& hosts_;
};

}  // namespace rr
