// Counts the bytes of an operation that has ended.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/stats.h"
#include "negotiation/segment/signature.h"

namespace rr {

// busbw times the time, by the factors of nccl-tests (its doc/PERFORMANCE.md, src/gather.cu and src/scatter.cu).
// nbytes: of the rank's input, of a scatter and a broadcast its output. All ranks are taken to have as many.
inline uint64_t bus_nbytes(Kind kind, uint64_t nbytes, size_t ranks) {
  const uint64_t others = ranks - 1;
  switch (kind) {
    case Kind::kAllreduce:
      return 2 * nbytes * others / ranks;
    case Kind::kReduceScatter:
    case Kind::kAlltoall:
      return nbytes * others / ranks;
    case Kind::kAllgather:
    case Kind::kGather:
    case Kind::kScatter:
      return nbytes * others;
    default:
      return nbytes;
  }
}

inline void count_moved(Stats& stats, Kind kind, uint64_t nbytes, int ranks) {
  add(stats.bytes_moved, nbytes);
  add(stats.bytes_on_bus, bus_nbytes(kind, nbytes, static_cast<size_t>(ranks)));
}

}  // namespace rr
