// The limit of a context's operations, and where it comes from.
#pragma once

#include <atomic>
#include <string>

#include "base/text.h"

namespace rr {

class OperationTimeout {
 public:
  // own_s: the context's own, in seconds; < 0: none, RINGREDUCE_TIMEOUT counts.
  OperationTimeout(double own_s, double knob_s) : seconds_(own_s < 0 ? knob_s : own_s), is_own_(own_s >= 0) {}

  double seconds() const { return seconds_.load(std::memory_order_relaxed); }  // 0 = never
  void set(double seconds) {
    is_own_.store(true, std::memory_order_relaxed);
    seconds_.store(seconds, std::memory_order_relaxed);
  }
  std::string text() const {
    const bool is_own = is_own_.load(std::memory_order_relaxed);  // not the knob's
    return (is_own ? "the group's timeout of " : "RINGREDUCE_TIMEOUT=") + seconds_text(seconds()) + " s";
  }

 private:
  std::atomic<double> seconds_;
  std::atomic<bool> is_own_;
};

}  // namespace rr
