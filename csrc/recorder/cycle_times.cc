#include "recorder/cycle_times.h"

#include <cmath>

#include "os/cycle_counter.h"

namespace rr {
namespace {

// The line goes through two looks so far apart at least, once there have been two: each is uncertain by 20 ns.
constexpr int64_t kLeastNs = 1'000'000;
constexpr int kTries = 3;

}  // namespace

// The try that was disturbed least, by the time between the counts before and after.
CycleTimes::Look CycleTimes::look() {
  Look best = {};
  int64_t least = INT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    const int64_t before = cycles_in_order();
    const int64_t ns = now_ns();
    const int64_t after = cycles_in_order();
    if (after < before || after - before >= least) continue;
    least = after - before;
    best = {before + least / 2, ns};
  }
  return best;
}

void CycleTimes::update() {
  const Look now = look();
  if (now.cycles <= to_.cycles) {  // a machine that was asleep may have begun to count anew
    from_ = now;
  } else if (now.ns - to_.ns >= kLeastNs) {
    from_ = to_;
  }
  to_ = now;
}

double CycleTimes::rate() const {
  if (to_.cycles == from_.cycles) return 0;
  return static_cast<double>(to_.ns - from_.ns) / static_cast<double>(to_.cycles - from_.cycles);
}

int64_t CycleTimes::ns(int64_t cycles) const {
  return to_.ns + std::llround(static_cast<double>(cycles - to_.cycles) * rate());
}

}  // namespace rr
