// HostRelay: join() across hosts.
//
// Before it says that a rank has joined, a leader shows all hosts what the rank has announced and nobody has decided,
// and says how many decisions it has taken up. So a host that has seen the rank join knows all that the rank has
// announced. What is complete for want of the ranks that have joined is therefore the same operation with the same
// participants on every host, however late each sees it. The end of an epoch needs more than that: a leader says once
// that its ranks have joined, know that all others have, and have nothing pending; a host goes on when all leaders have
// said so, for then it has heard everything that was announced in the epoch. What a rank elsewhere announces after that
// waits in the connection of its leader.

#include "relay/host_relay.h"

namespace rr {

bool HostRelay::have_drained() const {
  return phase_ == Phase::kNone &&
         control_.header().drained_count.load(std::memory_order_acquire) == hosts_.here().size();
}

void HostRelay::send_drained() {
  phase_ = Phase::kJoinEnds;
  links_.send(FrameType::kDrained, hosts_.here().front(), [](FrameWriter&) {});
}

bool HostRelay::finish_join() {
  if (!all_are_at(Phase::kJoinEnds)) return false;
  own_.finish_join();
  for (Sent& sent : sent_) sent.has_joined = false;
  leave_phase();
  return true;
}

bool HostRelay::all_are_at(Phase phase) const {
  return phase_ == phase &&
         !links_.any_of([&](const LeaderConnection& connection) { return connection.phase != phase; });
}

void HostRelay::leave_phase() {
  phase_ = Phase::kNone;
  for (int host = 0; host < links_.count(); ++host) {
    LeaderConnection& connection = links_[host];
    connection.phase = Phase::kNone;
    for (const auto& [rank, attendance] : connection.left_after) {
      control_.line(rank).attendance.store(attendance, std::memory_order_release);
    }
    connection.left_after.clear();
  }
}

}  // namespace rr
