#include "transport/tcp/arrivals.h"

namespace rr {

void Arrivals::begin_watch() {
  watchers_.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (is_parked_.load(std::memory_order_seq_cst) && is_parked_.exchange(false)) wake_();
}

bool Arrivals::look() {
  if (watchers_.load(std::memory_order_relaxed) == 0) {
    is_parked_.store(true, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (watchers_.load(std::memory_order_seq_cst) == 0) {
      looks_ = false;
      events_.change(arrived_.fd(), 0);
      return false;
    }
    is_parked_.store(false);
  }
  epoll_event events[64];
  while (arrived_.wait(events, 0) == 64) continue;
  return true;
}

void Arrivals::resume_if_watched() {
  if (looks_ || is_parked_.load()) return;
  looks_ = true;
  events_.change(arrived_.fd(), EPOLLIN);
}

}  // namespace rr
