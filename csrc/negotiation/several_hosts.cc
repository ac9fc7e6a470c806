// The negotiation of a group on several hosts: what a rank leaves for its host's leader to pass on, and how a host
// repeats the log of the first one.

#include "base/errors.h"
#include "negotiation/negotiation.h"

namespace rr {

void Negotiation::leave_note(Ticket ticket) {
  if (!hosts_.several()) return;
  Outbox& outbox = control_.outbox(rank_);
  const uint64_t at = outbox.written.load(std::memory_order_relaxed);
  if (at - outbox.read.load(std::memory_order_acquire) >= control_.note_count()) {
    throw InternalError("rank " + std::to_string(world_rank(hosts_.here().front())) +
                        ", which speaks for this host, has not passed on " + std::to_string(control_.note_count()) +
                        " announcements of rank " + std::to_string(world_rank(rank_)));
  }
  control_.note(rank_, at) = {ticket.request_slot, ticket.tag};
  outbox.written.store(at + 1, std::memory_order_release);
  note_positions_[ticket.request_slot] = at + 1;
}

Ticket Negotiation::record_named(const std::string& name, const std::vector<Recorded>& requests) {
  return locked([&] {
    const size_t slot = names_.slot_of(name);
    if (slot == Names::kNone) return Ticket{};
    // Ranks of one host whose announcements are the same operation there are in the same generation here: each of them
    // has announced what the others have, or had joined, after which all begin alike.
    const uint64_t generation = names_.next_generation(slot, requests.front().rank);
    const Ticket ticket = {Names::request_slot(slot, generation), generation};
    return write_requests(ticket, requests) ? ticket : Ticket{};
  });
}

bool Negotiation::record(Ticket ticket, const std::vector<Recorded>& requests) {
  if (!ticket.is_named()) return write_requests(ticket, requests);
  return locked([&] { return write_requests(ticket, requests); });
}

// Of a named operation: the group's lock is held.
bool Negotiation::write_requests(Ticket ticket, const std::vector<Recorded>& requests) {
  if (ticket.is_named() && !has_been_read(ticket)) return false;
  for (const Recorded& one : requests) write_request(one.rank, ticket, one.signature, one.payload, one.nbytes);
  return true;
}

bool Negotiation::complete_here(Ticket ticket, RankMask* participants) const {
  for (const int r : hosts_.here()) {
    if (!has_announced(ticket, r)) {
      if (control_.line(r).joined.load(std::memory_order_acquire) == 0) return false;
      if (!has_announced(ticket, r)) continue;  // it announced nothing after joining: the second look is final
    }
    participants->set(r);
  }
  return true;
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
      entry->nbytes += control_.signature(ticket.request_slot, participants.first()).nbytes;
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

std::string Negotiation::stored_name(Ticket ticket) const { return names_.text(Names::slot_at(ticket.request_slot)); }

}  // namespace rr
