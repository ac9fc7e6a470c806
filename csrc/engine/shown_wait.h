// Shows what a thread of this rank waits for, to the sampler and to who looks on from outside the job.
#pragma once

#include <cstdint>

#include "negotiation/segment/control_segment.h"
#include "os/thread.h"

namespace rr {

// For as long as it lives. A wait within another one of the same thread is the outer one; and a main thread's wait
// hides those of other threads.
class ShownWait {
 public:
  // slot, tag, kind: as WaitLine's. group: its id.
  ShownWait(WaitLine& line, uint64_t slot, uint64_t tag = 0, int group = 0, uint32_t kind = 0)
      : line_(line), slot_(slot), tag_(tag) {
    uint64_t shown = line_.slot.load(std::memory_order_relaxed);
    if (shown != 0 && (!is_main_thread() || line_.is_main_thread.load(std::memory_order_relaxed) != 0)) return;
    line_.tag.store(tag, std::memory_order_relaxed);
    line_.group.store(group, std::memory_order_relaxed);
    line_.kind.store(kind, std::memory_order_relaxed);
    line_.is_main_thread.store(is_main_thread() ? 1 : 0, std::memory_order_relaxed);
    number_ = line_.number.load(std::memory_order_relaxed) + 1;
    line_.number.store(number_, std::memory_order_relaxed);
    line_.slot.store(slot, std::memory_order_release);
  }
  ~ShownWait() {
    if (is_shown()) line_.slot.store(0, std::memory_order_release);
  }
  ShownWait(const ShownWait&) = delete;
  ShownWait& operator=(const ShownWait&) = delete;

  // Whether the line still tells of this wait.
  bool is_shown() const {
    return number_ != 0 && line_.slot.load(std::memory_order_relaxed) == slot_ &&
           line_.tag.load(std::memory_order_relaxed) == tag_ &&
           line_.number.load(std::memory_order_relaxed) == number_ &&
           (line_.is_main_thread.load(std::memory_order_relaxed) != 0) == is_main_thread();
  }
  uint64_t number() const { return number_; }  // as WaitLine's; 0: another thread's wait is shown

 private:
  WaitLine& line_;
  const uint64_t slot_;
  const uint64_t tag_;
  uint64_t number_ = 0;
};

}  // namespace rr
