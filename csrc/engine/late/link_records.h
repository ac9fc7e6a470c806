// What the links of this host to others carry, for a timeline: a record of each that was used, a few times a second.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/late/slow_links.h"
#include "recorder/recorder.h"

namespace rr {

class LinkRecords {
 public:
  // group: the world as the recorder knows it. Both outlast this.
  LinkRecords(Recorder& recorder, const RecordedGroup& group, const ControlSegment& control, const Hosts& hosts)
      : recorder_(recorder), group_(group), control_(control), hosts_(hosts) {}
  // To be called often, by the leader of a host.
  void add(int64_t now_ns);

 private:
  Recorder& recorder_;
  const RecordedGroup& group_;
  const ControlSegment& control_;
  const Hosts& hosts_;
  uint32_t timeline_ = 0;  // that `last_` is of
  int64_t last_ns_ = 0;
  std::vector<SlowLinks::Link> last_;
};

}  // namespace rr
