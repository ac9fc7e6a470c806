#include "negotiation/negotiation.h"

#include <cstring>

namespace rr {

Negotiation::Negotiation(const ControlSegment& control, int rank, const std::vector<int>& world_ranks,
                         const Hosts& hosts, Bells bells, Algo forced, size_t fusion_threshold,
                         std::function<void()> give_up, std::string gpu_path)
    : segment_(control, rank, world_ranks, hosts, std::move(bells), std::move(give_up)),
      control_(control),
      names_(control, hosts),
      notes_(segment_),
      requests_(segment_, std::move(gpu_path)),
      log_(segment_, requests_, forced, fusion_threshold),
      joins_(segment_, names_, notes_),
      deadlock_(segment_, names_, requests_) {}

void Negotiation::fill_request(int rank, Ticket ticket, const Signature& signature, const void* payload,
                               size_t nbytes) {
  RequestSlotHead& head = control_.head(ticket.request_slot, rank);
  head.digest.store(digest(signature), std::memory_order_relaxed);
  void* const into = signature.kind == Kind::kAlltoall ? static_cast<void*>(control_.splits(ticket.request_slot, rank))
                                                       : control_.payload(ticket.request_slot, rank);
  if (nbytes != 0) std::memcpy(into, payload, nbytes);
  // Rewriting equal bytes would take the lines away from the readers for nothing.
  Signature& announced = control_.signature(ticket.request_slot, rank);
  if (std::memcmp(&announced, &signature, sizeof signature) != 0) std::memcpy(&announced, &signature, sizeof signature);
}

void Negotiation::show_request(int rank, Ticket ticket) {
  control_.head(ticket.request_slot, rank).tag.store(ticket.tag, std::memory_order_release);
}

// The payload is read before the note begins: whatever that takes, the leader waits for no page of the caller's.
void Negotiation::announce(Ticket ticket, const Signature& signature, const void* payload, size_t nbytes) {
  fill_request(segment_.rank, ticket, signature, payload, nbytes);
  const uint64_t note = notes_.begin();
  show_request(segment_.rank, ticket);
  notes_.leave(note, ticket);
}

Ticket Negotiation::announce_unnamed(uint64_t counter, const Signature& signature, const void* payload, size_t nbytes) {
  const Ticket ticket = Ticket::unnamed(counter);
  announce(ticket, signature, payload, nbytes);
  return ticket;
}

Ticket Negotiation::announce_named(const std::string& name, const Signature& signature, const void* payload,
                                   size_t nbytes, bool logged, bool& log_full) {
  return segment_.locked([&] {
    const size_t slot = names_.slot_of(name);
    if (slot == Names::kNone) return Ticket{};
    const uint64_t generation = names_.next_generation(slot, segment_.rank);
    const Ticket ticket = {Names::request_slot(slot, generation), generation};
    if (!(notes_.has_room(ticket.request_slot) && joins_.have_read(ticket))) return Ticket{};
    announce(ticket, signature, payload, nbytes);
    RankMask participants;
    log_full = logged && segment_.hosts.is_first() && requests_.complete(ticket, &participants) &&
               !log_.append_locked(ticket, participants);
    return ticket;
  });
}

Ticket Negotiation::record_named(const std::string& name, const std::vector<Recorded>& requests) {
  return segment_.locked([&] {
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
  return segment_.locked([&] { return write_requests(ticket, requests); });
}

// Of a named operation: the group's lock is held.
bool Negotiation::write_requests(Ticket ticket, const std::vector<Recorded>& requests) {
  if (ticket.is_named() && !joins_.have_read(ticket)) return false;
  for (const Recorded& one : requests) {
    fill_request(one.rank, ticket, one.signature, one.payload, one.columns == nullptr ? one.nbytes : 0);
    for (size_t i = 0; one.columns != nullptr && i < one.columns->size(); ++i) {
      control_.splits(ticket.request_slot, one.rank)[(*one.columns)[i]] = static_cast<const uint64_t*>(one.payload)[i];
    }
    show_request(one.rank, ticket);
  }
  return true;
}

void Negotiation::publish_consumed(Ticket ticket) const {
  const size_t slot = Names::slot_at(ticket.request_slot);
  control_.head(Names::consumed_slot(slot), segment_.rank).consumed.store(ticket.tag, std::memory_order_release);
  segment_.ring_room_waiters();
}

Ticket Negotiation::latest_named(const std::string& stored_name, int rank) {
  return segment_.locked([&] {
    const size_t slot = names_.find(stored_name);
    if (slot == Names::kNone) return Ticket{};
    const uint64_t generation = names_.latest(slot, rank);
    return Ticket{Names::request_slot(slot, generation), generation};
  });
}

std::vector<std::string> Negotiation::announced_alone(int rank, const std::string& prefix) {
  return segment_.locked([&] {
    std::vector<std::string> found;
    for (size_t slot = 0; slot < control_.header().names_used; ++slot) {
      const uint64_t theirs = names_.latest(slot, rank);
      if (theirs <= names_.latest(slot, segment_.rank) || theirs <= control_.name_slot(slot).base) continue;
      std::string text = names_.text(slot);
      if (text.rfind(prefix, 0) == 0) found.push_back(std::move(text));
    }
    return found;
  });
}

}  // namespace rr
