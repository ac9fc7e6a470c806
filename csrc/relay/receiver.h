// What the other leaders say, written into this host's segment.
#pragma once

#include "relay/relay_deadlock.h"
#include "relay/relay_parts.h"
#include "relay/status/clock_relay.h"
#include "relay/status/shown_relay.h"
#include "relay/status/status_relay.h"

namespace rr {

class Receiver {
 public:
  Receiver(RelayParts& parts, RelayDeadlock& deadlock, StatusRelay& status, ClockRelay& clock, ShownRelay& shown)
      : parts_(parts), deadlock_(deadlock), status_(status), clock_(clock), shown_(shown) {}

  // Takes up what there is room for; true when something moved.
  bool receive();

 private:
  bool apply(int host, FrameParser& frame);
  void check_sender(int host, const FrameParser& frame) const;
  bool apply_quick(FrameParser& frame, bool is_named);
  bool apply_logged(int host, FrameParser& frame);
  bool apply_decision(int host, FrameParser& frame);
  void apply_joined(FrameParser& frame);
  void apply_left(LeaderConnection& connection, FrameParser& frame);
  void apply_failure(FrameParser& frame);
  void look_ahead(int host);
  bool may_decide() const;

  RelayParts& parts_;
  RelayDeadlock& deadlock_;
  StatusRelay& status_;
  ClockRelay& clock_;
  ShownRelay& shown_;
};

}  // namespace rr
