#include "relay/relay_join.h"

namespace rr {

bool RelayJoin::have_drained() const {
  return parts_.phase == Phase::kNone &&
         parts_.control.header().drained_count.load(std::memory_order_acquire) == parts_.hosts.here().size();
}

void RelayJoin::send_drained() {
  parts_.phase = Phase::kJoinEnds;
  parts_.links.send(FrameType::kDrained, parts_.hosts.leader_here(), [](FrameWriter&) {});
}

bool RelayJoin::finish() {
  if (!parts_.all_are_at(Phase::kJoinEnds)) return false;
  parts_.negotiation.joins().finish();
  parts_.leave_phase();
  return true;
}

}  // namespace rr
