// What a host shows of its ranks (negotiation/segment/shown.h), told to the first host once a second: who looks on
// there sees the ranks of all hosts.
#pragma once

#include <cstdint>

#include "negotiation/segment/hosts.h"
#include "relay/leader_links.h"

namespace rr {

class ShownRelay {
 public:
  // is_world: other groups' leaders tell nothing.
  ShownRelay(const ControlSegment& control, const Hosts& hosts, LeaderLinks& links, bool is_world)
      : control_(control), hosts_(hosts), links_(links), tells_(is_world && !hosts.is_first()) {}

  // Tells it, when it is time.
  void collect();
  // --- what other leaders send
  void apply(int host, FrameParser& frame);
  void apply_answer(const FrameParser& frame);

 private:
  const ControlSegment& control_;
  const Hosts& hosts_;
  LeaderLinks& links_;
  const bool tells_;
  int64_t told_ns_ = 0;
  bool is_answered_ = true;
};

}  // namespace rr
