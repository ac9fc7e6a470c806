// A mutual exclusion lock in shared memory (Drepper's three states: free, held, held and waited for). Held for less
// than a microsecond, never across a wait. A holder that dies leaves it held; `give_up` is called at least every 50 ms
// of waiting and throws when that has happened.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace rr {

class SharedLock {
 public:
  template <class GiveUp>
  void acquire(GiveUp give_up) {
    for (int turn = 0; turn < 100; ++turn) {
      if (try_acquire()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    while (state_.exchange(2, std::memory_order_acquire) != 0) {
      sleep();
      give_up();
    }
  }
  bool try_acquire() {
    uint32_t free = 0;
    return state_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }
  void release() {
    if (state_.exchange(0, std::memory_order_release) == 2) wake();
  }

 private:
  void sleep();  // until released or 50 ms
  void wake();
  std::atomic<uint32_t> state_;
};

class SharedLockGuard {
 public:
  // Of a lock that this thread has acquired already.
  SharedLockGuard(SharedLock& lock, std::adopt_lock_t) : lock_(lock) {}
  template <class GiveUp>
  SharedLockGuard(SharedLock& lock, const GiveUp& give_up) : lock_(lock) {
    lock_.acquire(give_up);
  }
  ~SharedLockGuard() { lock_.release(); }
  SharedLockGuard(const SharedLockGuard&) = delete;
  SharedLockGuard& operator=(const SharedLockGuard&) = delete;

 private:
  SharedLock& lock_;
};

}  // namespace rr
