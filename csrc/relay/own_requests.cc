#include "relay/own_requests.h"

#include <algorithm>

#include "base/clock.h"

namespace rr {

void OwnRequests::add(int rank, Ticket ticket) {
  Pending& pending = pending_[ticket.request_slot];
  if (pending.ticket.tag != ticket.tag) {
    pending = Pending();
    pending.ticket = ticket;
    pending.since_ns = now_ns();
    pending.order = added_++;
  }
  pending.announced.set(rank);
}

void OwnRequests::tell(Ticket ticket) {
  if (hosts_.is_first()) return;
  const auto found = pending_.find(ticket.request_slot);
  if (found == pending_.end() || found->second.ticket.tag != ticket.tag) return;
  Pending& pending = found->second;
  RankMask participants;
  if (!negotiation_.requests().complete_here(ticket, &participants)) return;
  std::vector<int> untold;
  for (const int r : hosts_.here()) {
    if (!participants.test(r)) continue;
    if (pending.told.test(r)) continue;
    // One that has announced the same operation as a quick one has told all hosts.
    if (negotiation_.requests().is_quick(control_.signature(ticket.request_slot, r), ticket.is_named())) continue;
    // What the rank announced before, perhaps under the same name, has not been passed on yet.
    if (!pending.announced.test(r)) return;
    untold.push_back(r);
  }
  if (untold.empty()) return;
  for (const int r : untold) pending.told.set(r);
  send(0, pending, untold);
}

void OwnRequests::tell_all() {
  for (auto& [request_slot, pending] : pending_) tell(pending.ticket);
}

// As they were announced: a host that sees one may ask why an earlier one has not come.
std::vector<OwnRequests::Pending*> OwnRequests::in_order() {
  std::vector<Pending*> all;
  for (auto& [request_slot, pending] : pending_) all.push_back(&pending);
  std::sort(all.begin(), all.end(), [](const Pending* a, const Pending* b) { return a->order < b->order; });
  return all;
}

void OwnRequests::show(int rank) {
  for (Pending* const pending : in_order()) {
    if (pending->announced.test(rank)) show(*pending, rank);
  }
}

void OwnRequests::show(Pending& pending, int rank) {
  if (pending.shown.test(rank) || !negotiation_.requests().has_announced(pending.ticket, rank)) return;
  pending.shown.set(rank);
  links_.tell_decisions(hosts_.leader_here());
  for (int host = 0; host < links_.count(); ++host) {
    if (links_.is_here(host) || (host == 0 && pending.told.test(rank))) continue;
    send(host, pending, {rank});
  }
  pending.told.set(rank);
}

void OwnRequests::show_late() {
  const int64_t now = now_ns();
  if (now - looked_ns_ < late_ns_ / 4) return;
  looked_ns_ = now;
  for (Pending* const pending : in_order()) {
    if (now - pending->since_ns < late_ns_) return;
    for (const int r : hosts_.here()) {
      if (pending->announced.test(r)) show(*pending, r);
    }
  }
}

void OwnRequests::remove(Ticket ticket) {
  const auto found = pending_.find(ticket.request_slot);
  if (found != pending_.end() && found->second.ticket.tag == ticket.tag) pending_.erase(found);
}

void OwnRequests::remove_withdrawn() {
  for (auto one = pending_.begin(); one != pending_.end();) {
    Pending& pending = one->second;
    bool is_withdrawn = !pending.ticket.is_named() && !negotiation_.requests().complete(pending.ticket);
    bool is_announced = false;
    for (const int r : hosts_.here()) {
      const Ticket blocked_on = negotiation_.deadlock().blocked_on(r);
      if (blocked_on.request_slot == one->first && blocked_on.tag == pending.ticket.tag) {
        for (RankMask* mask : {&pending.announced, &pending.told, &pending.shown}) mask->clear(r);
      }
      is_announced |= pending.announced.test(r);
    }
    one = is_withdrawn || !is_announced ? pending_.erase(one) : std::next(one);
  }
}

void OwnRequests::send(int host, const Pending& pending, const std::vector<int>& ranks) {
  links_.send_to(host, FrameType::kLogged, hosts_.leader_here(), [&](FrameWriter& out) {
    put(out, negotiation_, pending.ticket);
    put_requests(out, control_, pending.ticket, ranks, Splits::kWithin);
  });
}

}  // namespace rr
