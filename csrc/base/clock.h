// Monotonic time and deadlines. A deadline of "never" is the largest representable time.
#pragma once

#include <chrono>
#include <cstdint>

namespace rr {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Deadline {
 public:
  // timeout_s <= 0 means never, and so does more than a century, infinity included.
  static Deadline after_s(double timeout_s) {
    const bool ends = timeout_s > 0 && timeout_s < kCenturyS;
    return Deadline(ends ? now_ns() + static_cast<int64_t>(timeout_s * 1e9) : INT64_MAX);
  }
  static Deadline never() { return Deadline(INT64_MAX); }
  bool passed() const { return at_ns_ != INT64_MAX && now_ns() >= at_ns_; }
  // Nanoseconds left, at least 0 and at most cap_ns.
  int64_t left_ns(int64_t cap_ns) const {
    if (at_ns_ == INT64_MAX) return cap_ns;
    const int64_t left = at_ns_ - now_ns();
    return left < 0 ? 0 : (left < cap_ns ? left : cap_ns);
  }

 private:
  static constexpr double kCenturyS = 3.2e9;
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  int64_t at_ns_;
};

}  // namespace rr
