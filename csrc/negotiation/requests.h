// What the ranks have announced, as their request slots say it: whether an operation is complete, whether the requests
// agree, who is missing. Only reads.
#pragma once

#include <string>
#include <vector>

#include "collective/gpu/gpu_path.h"
#include "negotiation/segment/group_segment.h"
#include "negotiation/segment/ticket.h"

namespace rr {

// In the place of a request's digest: its rank has withdrawn it. digest() gives it as rarely as it gives two requests
// that differ the same number.
inline constexpr uint64_t kWithdrawnDigest = 0;

// Whether operations of a kind go on without the ranks that have joined.
bool can_do_without_joined(Kind kind);

class Requests {
 public:
  // gpu_path: the knob's; "auto" or the one path that operations on GPUs may take.
  Requests(const GroupSegment& segment, std::string gpu_path)
      : segment_(segment), control_(segment.control), hosts_(segment.hosts), gpu_path_(std::move(gpu_path)) {}

  // Whether every rank has announced the operation or joined; participants are those who announced it, at least one.
  bool complete(Ticket ticket, RankMask* participants = nullptr) const;
  // Whether every rank of this host has announced the operation or joined; participants are those of this host.
  bool complete_here(Ticket ticket, RankMask* participants) const;
  // Whether it is known for good how a complete operation ends. On one host: at once. On several hosts all must refuse
  // an operation between the same two entries of the log, so a rank that sees that the requests differ waits until the
  // first host says so. Ranks that have all announced a quick operation see by themselves that they differ.
  bool is_settled(Ticket ticket, RankMask* participants = nullptr) const;
  // Whether a complete operation can be executed: the requests agree, and no rank that it cannot do without has
  // joined. A function of the request slots and append marks, so every participant comes to the same verdict by itself.
  bool feasible(Ticket ticket, const RankMask& participants) const;
  // Why it is not, in words.
  std::string mismatch(Ticket ticket, const RankMask& participants) const;
  std::vector<int> missing(Ticket ticket) const;

  bool has_announced(Ticket ticket, int rank) const { return tag_of(ticket, rank) == ticket.tag; }
  // Whether a rank has announced it, or, in the same request slot, what comes after it.
  bool has_announced_since(Ticket ticket, int rank) const { return tag_of(ticket, rank) >= ticket.tag; }
  // Whether a rank has announced something else in the request slot since: then the operation is over.
  bool is_overwritten(Ticket ticket) const;

  // Whether an operation ends from the request slots and never enters the log.
  bool is_quick(const Signature& signature, bool is_named) const { return control_.is_quick(signature, is_named); }
  // Those of the participants that have announced the operation for the log.
  std::vector<int> logged_of(Ticket ticket, const RankMask& participants) const;
  // Whether the operands of all participants are slices of the same registered memory.
  bool are_registered(Ticket ticket, const RankMask& participants) const;

  bool is_appended(Ticket ticket) const { return mark_of(ticket) == ticket.tag; }
  bool is_refused(Ticket ticket) const { return mark_of(ticket) == (ticket.tag | kRefused); }
  bool is_decided(Ticket ticket) const { return control_.is_decided(ticket.request_slot, ticket.tag); }

  // How a bucket on GPUs travels, and why. The group's lock is held, or the entry is closed.
  GpuPath gpu_path_of(const Entry& entry) const;

 private:
  uint64_t tag_of(Ticket ticket, int rank) const {
    return control_.head(ticket.request_slot, rank).tag.load(std::memory_order_acquire);
  }
  uint64_t mark_of(Ticket ticket) const {
    return control_.append_mark(ticket.request_slot).load(std::memory_order_acquire);
  }
  DeviceTeam device_team(Ticket ticket, const RankMask& participants) const;

  const GroupSegment& segment_;
  const ControlSegment& control_;
  const Hosts& hosts_;
  const std::string gpu_path_;
};

}  // namespace rr
