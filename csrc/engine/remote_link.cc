#include "engine/remote_link.h"

#include <algorithm>

namespace rr {
namespace {
constexpr int64_t kSamplePeriodNs = 20'000'000;
constexpr int64_t kSampleMostDtNs = 250'000'000;  // a sample that is later stands for no more: nobody looked
}  // namespace

void RemoteLinks::add(RemoteLink* link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(link);
}

void RemoteLinks::remove(RemoteLink* link) {
  const std::lock_guard lock(mutex_);
  links_.erase(std::find(links_.begin(), links_.end(), link));
}

void RemoteLinks::look() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || links_.empty()) return;
  const int64_t now = now_ns();
  const int64_t dt_ns = now - looked_ns_;
  if (dt_ns < kSamplePeriodNs) return;
  looked_ns_ = now;
  for (RemoteLink* link : links_) link->sample(std::min(dt_ns, kSampleMostDtNs));
}

}  // namespace rr
