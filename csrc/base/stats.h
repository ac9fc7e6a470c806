// Counters of a context, one table; tests and users read them by name.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rr {

#define RR_STATS(X)                                                                     \
  X(operations)       /* submitted here */                                              \
  X(bytes_moved)      /* payload of the operations that finished here */                \
  X(bytes_on_bus)     /* busbw times the time (operations/moved_bytes.h) */             \
  X(bytes_copied)     /* into and out of staging and eager buffers */                   \
  X(bytes_on_wire)    /* sent to other hosts; 0 on one host */                          \
  X(negotiations)     /* requests made under the group's lock (named or logged) */      \
  X(buckets)          /* log entries executed */                                        \
  X(fused_operations) /* members of buckets of more than one */                         \
  X(one_shot)         /* operations finished from the request_slots: inline or eager */ \
  X(direct)           /* log entries by algorithm */                                    \
  X(two_shot)                                                                           \
  X(ring)                                                                               \
  X(recursive_doubling)                                                                 \
  X(tree)                                                                               \
  X(hierarchical)                                                                       \
  X(cuda_ipc) /* log entries on GPUs by path */                                         \
  X(cuda_nccl)                                                                          \
  X(cuda_mpi)                                                                           \
  X(cuda_staged)                                                                        \
  X(sleeps) /* times a thread here went to sleep in a wait */

// In the world's segment: zeros at first, and seen by whoever looks on (negotiation/segment/segment_view.h).
struct alignas(64) Stats {
#define RR_FIELD(name) std::atomic<uint64_t> name;
  RR_STATS(RR_FIELD)
#undef RR_FIELD

  // In the order of the table.
  template <class See>
  void for_each(See see) const {
#define RR_SEE(name) see(#name, name.load(std::memory_order_relaxed));
    RR_STATS(RR_SEE)
#undef RR_SEE
  }
  void reset() {
#define RR_ZERO(name) name.store(0);
    RR_STATS(RR_ZERO)
#undef RR_ZERO
  }
};

#define RR_ONE(name) +1
inline constexpr size_t kStatsCount = RR_STATS(RR_ONE);
#undef RR_ONE

inline void add(std::atomic<uint64_t>& counter, uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }

}  // namespace rr
