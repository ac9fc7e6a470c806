#include "negotiation/operation_log.h"

namespace rr {

// Another rank may append it, and all may go on, while this thread comes to hold the lock.
bool OperationLog::append(Ticket ticket) {
  RankMask participants(control_.size());
  if (!hosts_.is_first() || !requests_.complete(ticket, &participants)) return true;
  return segment_.locked([&] { return requests_.is_overwritten(ticket) || append_locked(ticket, participants); });
}

// Null when a rank still has to consume the entry that the next position would overwrite.
Entry* OperationLog::open_entry() {
  const uint64_t position = control_.header().log_tail.load(std::memory_order_relaxed);
  for (const int r : hosts_.here()) {
    if (control_.line(r).cursor.load(std::memory_order_acquire) + kLogEntries <= position) return nullptr;
  }
  Entry& entry = control_.entry(position);
  entry.closed.store(0, std::memory_order_relaxed);
  entry.members = entry.algorithm = entry.registered = 0;
  entry.nbytes = 0;
  entry.rounds.store(0, std::memory_order_relaxed);
  entry.completed.store(0, std::memory_order_relaxed);
  for (const int r : hosts_.here()) control_.claims(position)[r].next.store(0, std::memory_order_relaxed);
  return &entry;
}

bool can_share_entry(const Signature& first, const Signature& one) {
  return first.kind == Kind::kAllreduce && one.kind == Kind::kAllreduce && first.dtype == one.dtype &&
         first.op == one.op && have_same_factors(first, one) && first.codec == one.codec && first.place == one.place &&
         first.tensors == 1 && one.tensors == 1;
}

bool OperationLog::fusible(const Entry& entry, const Signature& one, const RankMask& participants,
                           bool registered) const {
  const Signature& first = control_.signature(entry.member[0].request_slot, entry.participants.first());
  return entry.members < kEntryMembers && can_share_entry(first, one) && (entry.registered != 0) == registered &&
         entry.participants.equals(participants, control_.size()) && entry.nbytes + one.nbytes <= threshold_;
}

bool OperationLog::append_locked(Ticket ticket, const RankMask& participants) {
  if (requests_.is_decided(ticket)) return true;
  const Signature& one = control_.signature(ticket.request_slot, participants.first());
  if (!requests_.feasible(ticket, participants)) {
    if (!hosts_.several()) refuse(ticket);  // on several, the first host's leader does it
    return true;
  }
  const bool is_registered = requests_.are_registered(ticket, participants);
  Header& header = control_.header();
  const uint64_t tail = header.log_tail.load(std::memory_order_relaxed);
  Entry* entry = tail != 0 ? &control_.entry(tail - 1) : nullptr;
  const bool is_open = entry != nullptr && entry->seq.load(std::memory_order_relaxed) == tail &&
                       entry->closed.load(std::memory_order_relaxed) == 0;
  bool opened = false;
  if (!is_open || !fusible(*entry, one, participants, is_registered)) {
    if (is_open) close_locked(*entry);
    entry = open_entry();
    if (entry == nullptr) return false;
    entry->registered = is_registered;
    entry->participants.assign(participants, control_.size());
    if (!participants.has_any_of(hosts_.here()))
      entry->rounds.store(1, std::memory_order_relaxed);  // none of this host's stage
    opened = true;
  }
  control_.append_mark(ticket.request_slot).store(ticket.tag, std::memory_order_release);
  entry->member[entry->members++] = {ticket.request_slot, ticket.tag};
  entry->nbytes += one.nbytes;
  if (opened) {
    entry->seq.store(tail + 1, std::memory_order_release);
    header.log_tail.store(tail + 1, std::memory_order_release);
  }
  const bool may_grow =
      one.kind == Kind::kAllreduce && one.tensors == 1 && entry->nbytes < threshold_ && entry->members < kEntryMembers;
  if (!may_grow) close_locked(*entry);
  RankMask async_ranks(control_.size());
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r) || control_.signature(ticket.request_slot, r).is_async != 0) async_ranks.set(r);
  }
  if (opened || !may_grow) segment_.ring_engines(async_ranks);
  segment_.ring_waiters();
  return true;
}

void OperationLog::close_locked(Entry& entry) const {
  if (entry.closed.load(std::memory_order_relaxed) != 0) return;
  const Signature& one = control_.signature(entry.member[0].request_slot, entry.participants.first());
  const Reduction reduction = reduction_of(one, control_.size());
  const bool is_allreduce = one.kind == Kind::kAllreduce;
  const bool is_registered = entry.registered != 0;
  const Algo algo = one.place == Place::kDevice ? requests_.gpu_path_of(entry).algorithm
                    : hosts_.several() ? select_across_hosts(forced_, is_allreduce ? &reduction : nullptr, one.codec)
                    : is_allreduce     ? select_allreduce(forced_, reduction, is_registered)
                                       : select_movement(forced_, one.kind == Kind::kBroadcast, is_registered);
  entry.algorithm = static_cast<uint32_t>(algo);
  entry.closed.store(1, std::memory_order_release);
}

void OperationLog::close(Entry& entry) {
  segment_.locked([&] { close_locked(entry); });
  segment_.ring_waiters();
}

// Nobody executes it; the participants, some of whom may have announced something that never enters the log, find out
// from the request slots.
void OperationLog::refuse(Ticket ticket) {
  control_.append_mark(ticket.request_slot).store(ticket.tag | kRefused, std::memory_order_release);
  segment_.ring_waiters();
}

// The request stays where it is, so that slots and generations go on as ever. Ranks announce unnamed operations without
// the lock, so a rank may see this one complete before the mark is there. The mark is what decides (PendingOperations::
// settle()), and it is only written under the lock.
bool OperationLog::withdraw(Ticket ticket) {
  if (hosts_.several()) return false;
  return segment_.locked([&] {
    if (requests_.is_refused(ticket)) return true;
    if (requests_.is_appended(ticket) || requests_.complete(ticket)) return false;
    control_.head(ticket.request_slot, segment_.rank).digest.store(kWithdrawnDigest, std::memory_order_relaxed);
    refuse(ticket);
    return true;
  });
}

bool OperationLog::repeat(const std::vector<Ticket>& members, uint32_t algorithm, const RankMask& participants) {
  const bool written = segment_.locked([&] {
    Entry* const entry = open_entry();
    if (entry == nullptr) return false;
    entry->participants.assign(participants, control_.size());
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
  segment_.ring_engines(here);
  segment_.ring_waiters();
  return true;
}

}  // namespace rr
