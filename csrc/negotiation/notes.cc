#include "negotiation/notes.h"

#include "base/errors.h"

namespace rr {

void Notes::leave(Ticket ticket) {
  if (!hosts_.several()) return;
  Outbox& outbox = control_.outbox(segment_.rank);
  const uint64_t at = outbox.written.load(std::memory_order_relaxed);
  if (at - outbox.read.load(std::memory_order_acquire) >= control_.note_count()) {
    throw InternalError("rank " + std::to_string(segment_.world_rank(hosts_.leader_here())) +
                        ", which speaks for this host, has not passed on " + std::to_string(control_.note_count()) +
                        " announcements of rank " + std::to_string(segment_.world_rank(segment_.rank)));
  }
  control_.note(segment_.rank, at) = {ticket.request_slot, ticket.tag};
  outbox.written.store(at + 1, std::memory_order_release);
  positions_[ticket.request_slot] = at + 1;
}

bool Notes::has_room(uint64_t request_slot) const {
  if (!hosts_.several()) return true;
  const Outbox& outbox = control_.outbox(segment_.rank);
  const uint64_t unread = outbox.written.load(std::memory_order_relaxed) - outbox.read.load(std::memory_order_acquire);
  return unread < control_.note_count() && is_passed_on(request_slot);
}

}  // namespace rr
