#include "engine/remote_link.h"

#include <algorithm>

namespace rr {
namespace {
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

void RemoteLinks::sample() {
  const std::lock_guard lock(mutex_);
  const int64_t now = now_ns();
  const int64_t dt_ns = std::min(now - sampled_ns_, kSampleMostDtNs);
  sampled_ns_ = now;
  for (RemoteLink* link : links_) link->sample(dt_ns);
}

void RemoteLink::sample(int64_t dt_ns) {
  const bool is_full = is_full_.load(std::memory_order_relaxed);
  if (!is_full && !was_pushed_.exchange(false, std::memory_order_relaxed)) return;  // no system call for idle links
  if (!is_full && !link_->has_unsent()) return;
  was_pushed_.store(true, std::memory_order_relaxed);
  rr::add(score_.busy_ns, static_cast<uint64_t>(dt_ns));
}

}  // namespace rr
