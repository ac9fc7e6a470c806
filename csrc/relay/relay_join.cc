// HostRelay: join() across hosts.
//
// A rank's requests and its join travel in order, so a host that has seen it join knows what it has announced. What is
// complete for want of the ranks that have joined is therefore the same operation with the same participants on every
// host, however late each sees it. The end of an epoch needs more than that: a leader says once that its ranks have
// joined, know that all others have, and have nothing pending; a host goes on when all leaders have said so, for then
// it has heard everything that was announced in the epoch. What a rank elsewhere announces after that waits in the
// connection of its leader.
//
// Who joined last is what the first host saw.

#include <algorithm>

#include "relay/host_relay.h"

namespace rr {

bool HostRelay::have_drained() const {
  return phase_ == Phase::kNone &&
         control_.header().drained_count.load(std::memory_order_acquire) == hosts_.here().size();
}

void HostRelay::send_drained() {
  phase_ = Phase::kJoinEnds;
  const int32_t last_joined = control_.header().last_joined;  // final: everybody has joined
  if (hosts_.mine == 0) last_joined_ = last_joined;
  send(FrameType::kDrained, hosts_.here().front(), [&](FrameWriter& out) { out.put(last_joined); });
}

bool HostRelay::finish_join() {
  if (!all_are_at(Phase::kJoinEnds)) return false;
  own_.finish_join(last_joined_);
  for (Sent& sent : sent_) sent.has_joined = false;
  leave_phase();
  return true;
}

bool HostRelay::all_are_at(Phase phase) const {
  if (phase_ != phase) return false;
  return std::all_of(connections_.begin(), connections_.end(), [&](const LeaderConnection& connection) {
    return connection.link == nullptr || connection.phase == phase;
  });
}

void HostRelay::leave_phase() {
  phase_ = Phase::kNone;
  for (LeaderConnection& connection : connections_) {
    connection.phase = Phase::kNone;
    for (const auto& [rank, attendance] : connection.left_after) {
      control_.line(rank).attendance.store(attendance, std::memory_order_release);
    }
    connection.left_after.clear();
  }
}

// What other hosts' ranks have announced becomes complete without another request when somebody joins, and no rank of
// the first host, whose log it is, may have a part in it.
void HostRelay::append_incomplete() {
  if (!log_full_ && control_.header().joined_count.load(std::memory_order_acquire) == 0) return;
  log_full_ = false;
  for (auto one = incomplete_.begin(); one != incomplete_.end();) {
    const Ticket ticket = {one->first, one->second.tag};
    const auto& mark = control_.append_mark(ticket.request_slot);
    const auto is_settled = [&] { return mark.load(std::memory_order_relaxed) >= ticket.tag; };
    if (!is_settled() && !negotiations_[static_cast<size_t>(one->second.rank)]->append(ticket)) log_full_ = true;
    one = is_settled() ? incomplete_.erase(one) : std::next(one);
  }
}

}  // namespace rr
