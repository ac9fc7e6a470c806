// The end of a join() across hosts.
//
// Before it says that a rank has joined, a leader shows all hosts what the rank has announced and nobody has decided,
// and says how many decisions it has taken up. So a host that has seen the rank join knows all that the rank has
// announced. What is complete for want of the ranks that have joined is therefore the same operation with the same
// participants on every host, however late each sees it. The end of an epoch needs more than that: a leader says once
// that its ranks have joined, know that all others have, and have nothing pending; a host goes on when all leaders have
// said so, for then it has heard everything that was announced in the epoch. What a rank elsewhere announces after that
// waits in the connection of its leader.
#pragma once

#include "relay/relay_parts.h"

namespace rr {

class RelayJoin {
 public:
  explicit RelayJoin(RelayParts& parts) : parts_(parts) {}

  // Whether all ranks here have joined, know that all others have, and have nothing pending.
  bool have_drained() const;
  // Says so to the other leaders.
  void send_drained();
  // Ends the epoch once all hosts have drained; true when it did.
  bool finish();

 private:
  RelayParts& parts_;
};

}  // namespace rr
