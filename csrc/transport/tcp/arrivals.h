// Notices that something has arrived on a link's connection while somebody sleeps who waits for it.
//
// Where nobody watches, whoever looks at the links is faster than the network's thread, which then does not look: it is
// parked, what has arrived stays in an epoll, and is reported once somebody watches. Who begins to watch counts itself
// and then looks whether the thread is parked; the thread says that it is parked and then looks for watchers: one of
// the two sees the other.
#pragma once

#include <atomic>
#include <functional>

#include "os/epoll.h"

namespace rr {

class Arrivals {
 public:
  // events: in which the network's thread sleeps. wake: has it come out of that sleep.
  Arrivals(Epoll& events, std::function<void()> wake) : events_(events), wake_(std::move(wake)) {
    events_.add(arrived_.fd(), EPOLLIN);
  }

  // Any thread's.
  void begin_watch();
  void end_watch() { watchers_.fetch_sub(1, std::memory_order_relaxed); }

  // The network's thread's.
  void add(int fd) { arrived_.add(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET); }  // each is reported once
  void remove(int fd) { arrived_.remove(fd); }
  bool has(int fd) const { return fd == arrived_.fd(); }
  bool look();  // what has arrived is reported; true: somebody watches
  void resume_if_watched();

 private:
  Epoll& events_;
  const std::function<void()> wake_;
  Epoll arrived_;
  std::atomic<int> watchers_{0};
  std::atomic<bool> is_parked_{false};
  bool looks_ = true;
};

}  // namespace rr
