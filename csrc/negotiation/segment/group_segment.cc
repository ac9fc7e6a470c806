#include "negotiation/segment/group_segment.h"

#include <algorithm>

namespace rr {

uint64_t GroupSegment::largest_unnamed() const {
  uint64_t largest = 0;
  for (int r = 0; r < control.size(); ++r) largest = std::max(largest, control.line(r).unnamed.load());
  return largest;
}

void GroupSegment::ring_waiters() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const int r : hosts.here()) {
    if (r != rank) wake_sleepers(*bells_.wait[static_cast<size_t>(r)]);
  }
}

// Without a fence, which each operation would pay for: who has begun to wait at this very moment may not be seen, and
// looks again by itself.
void GroupSegment::ring_room_waiters() const {
  if (control.header().room_waiters.load(std::memory_order_relaxed) == 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const int r : hosts.here()) wake_sleepers(*bells_.wait[static_cast<size_t>(r)]);
}

void GroupSegment::ring_all() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const int r : hosts.here()) {
    wake_all(*bells_.wait[static_cast<size_t>(r)]);
    wake_all(*bells_.engine[static_cast<size_t>(r)]);
  }
}

void GroupSegment::ring_engines(const RankMask& mask) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const int r : hosts.here()) {
    if (mask.test(r)) wake_sleepers(*bells_.engine[static_cast<size_t>(r)]);
  }
}

}  // namespace rr
