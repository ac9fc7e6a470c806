// How many threads are inside a section, for whoever must wait until the others have left it.
#pragma once

#include <atomic>

#include "base/poll.h"

namespace rr {

// This thread is inside the section, to the end of the scope. Scopes nest: a signal's handler may enter the section
// that its own thread is in. Section: a type that names the section.
template <class Section>
class ThreadsInside {
 public:
  ThreadsInside() {
    all_.fetch_add(1);
    ++own_;
  }
  ~ThreadsInside() {
    --own_;
    all_.fetch_sub(1);
  }
  ThreadsInside(const ThreadsInside&) = delete;
  ThreadsInside& operator=(const ThreadsInside&) = delete;

  static bool has_own() { return own_ > 0; }

  // Whether all other threads have left within timeout_s seconds.
  static bool await_others(double timeout_s) {
    return poll_until([] { return all_.load() <= own_; }, Deadline::after_s(timeout_s));
  }

  // In a forked child, which has this thread only.
  static void forget_after_fork() { all_.store(own_); }

 private:
  inline static std::atomic<int> all_{0};
  inline static thread_local int own_ = 0;
};

}  // namespace rr
