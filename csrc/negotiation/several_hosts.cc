// The negotiation of a group on several hosts: what a rank leaves for its host's leader to pass on, and how a host
// repeats the log of the first one.

#include "base/errors.h"
#include "negotiation/negotiation.h"

namespace rr {

// Only ranks of this host leave notes. What the leader writes in the name of other ranks has come from their leaders.
void Negotiation::leave_note(Ticket ticket, bool is_consumed) const {
  if (!hosts_.several() || !hosts_.is_here(rank_)) return;
  Outbox& outbox = control_.outbox(rank_);
  const uint64_t at = outbox.written.load(std::memory_order_relaxed);
  if (at - outbox.read.load(std::memory_order_acquire) >= control_.note_count()) {
    throw InternalError("rank " + std::to_string(world_rank(hosts_.here().front())) +
                        ", which speaks for this host, has not passed on " + std::to_string(control_.note_count()) +
                        " announcements of rank " + std::to_string(world_rank(rank_)));
  }
  control_.note(rank_, at) = {ticket.request_slot, ticket.tag, is_consumed ? uint64_t{1} : uint64_t{0}};
  outbox.written.store(at + 1, std::memory_order_release);
}

void Negotiation::leave_request_note(Ticket ticket) {
  leave_note(ticket, false);
  if (!note_positions_.empty())
    note_positions_[ticket.request_slot] = control_.outbox(rank_).written.load(std::memory_order_relaxed);
}

bool Negotiation::is_anyone_here(const RankMask& participants) const {
  for (const int r : hosts_.here()) {
    if (participants.test(r)) return true;
  }
  return false;
}

bool Negotiation::has_note_room(uint64_t request_slot) const {
  if (!hosts_.several()) return true;
  const Outbox& outbox = control_.outbox(rank_);
  const uint64_t unread = outbox.written.load(std::memory_order_relaxed) - outbox.read.load(std::memory_order_acquire);
  return unread < kUnnamedSlots + control_.capacity() && is_passed_on(request_slot);
}

bool Negotiation::repeat(const std::vector<Ticket>& members, uint32_t algorithm, const RankMask& participants) {
  const bool written = locked([&] {
    Entry* const entry = open_entry();
    if (entry == nullptr) return false;
    entry->participants = participants;
    entry->algorithm = algorithm;
    for (const Ticket ticket : members) {
      control_.append_mark(ticket.request_slot).store(ticket.tag, std::memory_order_release);
      entry->member[entry->members++] = {ticket.request_slot, ticket.tag};
      entry->nbytes += control_.signature(ticket.request_slot, first_of(participants)).nbytes;
    }
    entry->closed.store(1, std::memory_order_relaxed);
    Header& header = control_.header();
    const uint64_t tail = header.log_tail.load(std::memory_order_relaxed);
    entry->seq.store(tail + 1, std::memory_order_release);
    header.log_tail.store(tail + 1, std::memory_order_release);
    return true;
  });
  if (!written) return false;
  RankMask here;
  for (const int r : hosts_.here()) here.set(r);
  ring_engines(here);
  ring_waiters();
  return true;
}

Ticket Negotiation::latest_named(const std::string& stored_name, int rank) {
  return locked([&] {
    const size_t slot = names_.find(stored_name);
    if (slot == Names::kNone) return Ticket{};
    const uint64_t generation = names_.latest(slot, rank);
    return Ticket{Names::request_slot(slot, generation), generation};
  });
}

std::string Negotiation::stored_name(Ticket ticket) const {
  return names_.text((ticket.request_slot - kUnnamedSlots) / 2);
}

}  // namespace rr
