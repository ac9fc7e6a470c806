#include "relay/sequencer.h"

namespace rr {

void Sequencer::add(Ticket ticket) {
  Undecided& one = undecided_[ticket.request_slot];
  if (one.ticket.tag != ticket.tag) one = {ticket};
}

void Sequencer::look(Ticket ticket) {
  const auto found = undecided_.find(ticket.request_slot);
  if (found == undecided_.end() || found->second.ticket.tag != ticket.tag) return;
  if (is_over(found->second)) undecided_.erase(found);
}

void Sequencer::look_at_all() {
  if (!is_log_full_ && control_.header().joined_count.load(std::memory_order_acquire) == 0) return;
  is_log_full_ = false;
  for (auto one = undecided_.begin(); one != undecided_.end();) {
    one = is_over(one->second) ? undecided_.erase(one) : std::next(one);
  }
}

bool Sequencer::is_over(Undecided& one) {
  if (!decide(one)) return false;
  own_requests_.remove(one.ticket);
  return true;
}

// All ranks are looked at once for each operation, however often somebody asks.
bool Sequencer::is_anybody_missing(Undecided& one) const {
  while (one.missing < control_.size()) {
    const bool has_joined = control_.line(one.missing).joined.load(std::memory_order_acquire) != 0;
    if (!has_joined && !negotiation_.requests().has_announced_since(one.ticket, one.missing)) return true;
    ++one.missing;
  }
  return false;
}

// False: it is to be looked at again.
bool Sequencer::decide(Undecided& one) {
  const Ticket ticket = one.ticket;
  if (negotiation_.requests().is_decided(ticket)) return true;
  if (is_anybody_missing(one)) return false;
  if (negotiation_.requests().is_overwritten(ticket)) return true;
  RankMask participants;
  if (!negotiation_.requests().complete(ticket, &participants)) return false;
  const std::vector<int> logged = negotiation_.requests().logged_of(ticket, participants);
  if (logged.empty()) return true;  // a verdict has withdrawn the requests that were for the log
  if (negotiation_.requests().feasible(ticket, participants)) {
    const bool is_appended = negotiation_.log().append(ticket);
    is_log_full_ |= !is_appended;
    return is_appended;
  }
  send_log();  // what its ranks announced before under the same name
  send_refusal(ticket, participants, logged);
  negotiation_.log().refuse(ticket);
  return true;
}

void Sequencer::send_log() {
  const uint64_t tail = control_.header().log_tail.load(std::memory_order_acquire);
  for (; log_sent_ < tail; ++log_sent_) {
    Entry& entry = control_.entry(log_sent_);
    if (entry.closed.load(std::memory_order_acquire) == 0) negotiation_.log().close(entry);
    send_entry(entry);
    // Now, and not when its last note is read: nobody is shown what has been sent as decided.
    for (uint32_t i = 0; i < entry.members; ++i) {
      own_requests_.remove({entry.member[i].request_slot, entry.member[i].tag});
    }
  }
  control_.header().log_sent.store(log_sent_, std::memory_order_release);
}

// A host none of whose ranks takes part needs to know no more than that the decision has been made. fill(writer, host)
// puts the other fields.
template <class Fill>
void Sequencer::send_decision(FrameType type, const RankMask& participants, Fill fill) {
  ++decisions_;
  for (int host = 0; host < links_.count(); ++host) {
    if (links_.is_here(host)) continue;
    const bool takes_part = participants.has_any_of(hosts_.members[static_cast<size_t>(host)]);
    links_.send_to(host, takes_part ? type : FrameType::kDecided, hosts_.leader_here(), [&](FrameWriter& out) {
      out.put(decisions_);
      if (!takes_part) return;
      out.put(negotiation_.joins().latest_stamp());  // its ranks go on without those who have joined
      fill(out, host);
    });
  }
}

void Sequencer::send_entry(const Entry& entry) {
  send_decision(FrameType::kEntry, entry.participants, [&](FrameWriter& out, int host) {
    out.put(entry.algorithm);
    put_ranks(out, entry.participants, control_.size());
    out.put(entry.members);
    for (uint32_t i = 0; i < entry.members; ++i) {
      const Ticket ticket = {entry.member[i].request_slot, entry.member[i].tag};
      put(out, negotiation_, ticket);
      put_agreed(out, control_, ticket, entry.participants, hosts_.members[static_cast<size_t>(host)]);
    }
  });
}

void Sequencer::send_refusal(Ticket ticket, const RankMask& participants, const std::vector<int>& logged) {
  send_decision(FrameType::kRefused, participants, [&](FrameWriter& out, int) {
    put(out, negotiation_, ticket);
    put_ranks(out, participants, control_.size());
    put_requests(out, control_, ticket, logged, Splits::kLeftOut);
  });
}

}  // namespace rr
