#include "operations/usual_waits.h"

#include <algorithm>
#include <iterator>

namespace rr {
namespace {
constexpr double kTimes = 20;
constexpr double kMoreS = 60;
constexpr double kLongS = 0.25;           // a wait of 1/20 of the default of RINGREDUCE_STALL_WARNING
constexpr int64_t kGoneNs = 200'000'000;  // an operation under way is seen every 0.1 s
constexpr size_t kNamesMost = 1024;
}  // namespace

double UsualWaits::late_after_s(const Operation& operation, double age_s, double least_s, int64_t now) {
  if (age_s < kLongS) return least_s;
  const std::lock_guard lock(mutex_);
  const std::string key = called(operation.kind, operation.name, 0);
  if (waits_.size() >= kNamesMost && waits_.count(key) == 0) return least_s;  // a program of so many names has no usual
  Waits& waits = waits_[key];
  const bool is_another = operation.number != waits.number || waits.seen_ns == 0;
  // Several unnamed ones may be under way at once: the oldest counts.
  if (is_another && now - waits.seen_ns > kGoneNs) {
    if (waits.seen_ns != 0) {
      std::rotate(std::begin(waits.ended_s), std::end(waits.ended_s) - 1, std::end(waits.ended_s));
      waits.ended_s[0] = waits.age_s;
    }
    waits.number = operation.number;
    waits.age_s = 0;
  }
  if (operation.number == waits.number) {
    waits.age_s = std::max(waits.age_s, age_s);
    waits.seen_ns = now;
  }
  const double usual_s = *std::min_element(std::begin(waits.ended_s), std::end(waits.ended_s));
  return std::max(least_s, std::min(kTimes * usual_s, usual_s + kMoreS));
}

}  // namespace rr
