// What a rank of a group on several hosts has announced, and that it has joined, for the leader of its host to pass on:
// a note for each. On one host nobody writes or reads notes.
//
// All hosts have to hear of what the ranks of a host do in the order in which these did it: what one does may rest on
// what another has done, and whoever waits for the second must not hear of the first alone. So a note has a number,
// which the rank takes before others can see what the note is about. Numbers of a host have no gaps: where one is
// missing, its rank is about to leave the note.
//
// A note names the request slot, and the leader reads the request there: until then what is there has to stay. The
// ranks that take part show by their own requests that it has been passed on; those that have joined do not.
#pragma once

#include <cstdint>
#include <vector>

#include "negotiation/segment/group_segment.h"
#include "negotiation/segment/ticket.h"

namespace rr {

class Notes {
 public:
  explicit Notes(const GroupSegment& segment)
      : segment_(segment),
        control_(segment.control),
        hosts_(segment.hosts),
        positions_(segment.hosts.several() ? segment.control.request_slot_count() : 0) {}

  // The number of the note that this rank leaves next, before it announces or joins. Whoever has begun leaves the note:
  // the leader waits for it. Raises InternalError where there is no room.
  uint64_t begin();
  // Once others can see the request.
  void leave(uint64_t number, Ticket ticket);
  void leave_joined(uint64_t number);
  // Whether this rank may announce in the request slot: there is room for a note, and the leader has passed on what was
  // announced in the slot before.
  bool has_room(uint64_t request_slot) const;
  // Whether the leader has passed on what this rank announced last in the request slot.
  bool is_passed_on(uint64_t request_slot) const {
    return positions_.empty() ||
           control_.outbox(segment_.rank).read.load(std::memory_order_acquire) >= positions_[request_slot];
  }

 private:
  size_t unread() const;
  void write(const Note& note);

  const GroupSegment& segment_;
  const ControlSegment& control_;
  const Hosts& hosts_;
  std::vector<uint64_t> positions_;  // by request slot: notes left up to this rank's last request there
};

}  // namespace rr
