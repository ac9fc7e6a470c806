#include "negotiation/notes.h"

#include "base/errors.h"

namespace rr {

uint64_t Notes::begin() {
  if (!hosts_.several()) return 0;
  if (unread() >= control_.note_count()) {
    throw InternalError("rank " + std::to_string(segment_.world_rank(hosts_.leader_here())) +
                        ", which speaks for this host, has not passed on " + std::to_string(control_.note_count()) +
                        " announcements of rank " + std::to_string(segment_.world_rank(segment_.rank)));
  }
  return control_.header().notes.fetch_add(1);
}

void Notes::leave(uint64_t number, Ticket ticket) {
  if (!hosts_.several()) return;
  write({ticket.request_slot, ticket.tag, number});
  positions_[ticket.request_slot] = control_.outbox(segment_.rank).written.load(std::memory_order_relaxed);
}

void Notes::leave_joined(uint64_t number) {
  if (hosts_.several()) write({Note::kJoined, 0, number});
}

void Notes::write(const Note& note) {
  Outbox& outbox = control_.outbox(segment_.rank);
  const uint64_t at = outbox.written.load(std::memory_order_relaxed);
  control_.note(segment_.rank, at) = note;
  outbox.written.store(at + 1, std::memory_order_release);
}

size_t Notes::unread() const {
  const Outbox& outbox = control_.outbox(segment_.rank);
  return static_cast<size_t>(outbox.written.load(std::memory_order_relaxed) -
                             outbox.read.load(std::memory_order_acquire));
}

bool Notes::has_room(uint64_t request_slot) const {
  return !hosts_.several() || (unread() + 1 < control_.note_count() && is_passed_on(request_slot));
}

}  // namespace rr
