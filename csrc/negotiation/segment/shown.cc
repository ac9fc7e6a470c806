#include "negotiation/segment/shown.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>

#include "base/hash.h"
#include "negotiation/segment/control_segment.h"

#ifndef RR_VERSION
#define RR_VERSION "0.0.0"
#endif

namespace rr {

uint64_t layout_hash() {
  std::string names = RR_VERSION;
#define RR_NAME_OF_STAT(name) names += " " #name;
  RR_STATS(RR_NAME_OF_STAT)
#undef RR_NAME_OF_STAT
#define RR_NAME_OF_KIND(id, upper, lower) names += " " lower;
  RR_KINDS(RR_NAME_OF_KIND)
#undef RR_NAME_OF_KIND
  uint64_t hash = hash_of_text(names);
  for (const size_t nbytes :
       {sizeof(SegmentIdentity), sizeof(Header), sizeof(RankLine), sizeof(RankCause), sizeof(RankWait),
        sizeof(WaitLine), sizeof(Seqlocked<WaitText>), sizeof(RankScore), sizeof(Seqlocked<LateText>), sizeof(Stats),
        sizeof(Seqlocked<RankElsewhere>), sizeof(LinkScore), sizeof(RankStatus), sizeof(RankFacts), sizeof(Signature),
        ControlSegment::nbytes(1, 16)}) {
    hash = mix(hash, nbytes);
  }
  return std::max<uint64_t>(1, hash);  // 0 is memory that nobody has written
}

ShownRank shown_rank(const ControlSegment& control, int rank) {
  const RankFacts& facts = control.facts(rank);
  const RankScore& score = control.score(rank);
  const WaitLine& line = control.wait_line(rank);
  ShownRank shown = {};
  // A leader may show its host's ranks while it waits for them: one that has not come has not written its facts.
  if (control.line(rank).attendance.load(std::memory_order_acquire) == Attendance::kAbsent) return shown;
  shown.pid = facts.pid;
  std::memcpy(shown.hostname, facts.hostname, sizeof shown.hostname);
  shown.waited_ns = score.waited_ns.load(std::memory_order_relaxed);
  shown.late_ns = score.late_ns.load(std::memory_order_relaxed);
  size_t at = 0;
  control.stats(rank).for_each([&](const char*, uint64_t value) { shown.stats[at++] = value; });
  if (line.slot.load(std::memory_order_acquire) == 0) return shown;
  shown.is_waiting = 1;
  shown.kind = line.kind.load(std::memory_order_relaxed);
  const std::optional<WaitText> told = control.wait_text(rank).read();
  if (!told || told->wait != line.number.load(std::memory_order_relaxed)) return shown;
  std::memcpy(shown.wait_text, told->text, sizeof shown.wait_text);
  shown.missing = told->missing;
  return shown;
}

}  // namespace rr
