#include "negotiation/segment/shown.h"

#include <algorithm>
#include <initializer_list>

#include "base/hash.h"
#include "negotiation/segment/control_segment.h"

#ifndef RR_VERSION
#define RR_VERSION "0.0.0"
#endif

namespace rr {

uint64_t layout_hash() {
  uint64_t hash = hash_of_text(RR_VERSION);
  for (const size_t nbytes :
       {sizeof(SegmentIdentity), sizeof(Header), sizeof(RankLine), sizeof(RankCause), sizeof(RankWait),
        sizeof(WaitLine), sizeof(Seqlocked<WaitText>), sizeof(RankScore), sizeof(Seqlocked<LateText>), sizeof(Stats),
        sizeof(RankStatus), sizeof(RankFacts), sizeof(Signature), ControlSegment::nbytes(1, 16)}) {
    hash = mix(hash, nbytes);
  }
  return std::max<uint64_t>(1, hash);  // 0 is memory that nobody has written
}

}  // namespace rr
