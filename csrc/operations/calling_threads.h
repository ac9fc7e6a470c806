// Which threads of this process call operations of a context, in whichever group.
//
// A wait of the only thread proves that this rank calls nothing else meanwhile, and deadlock verdicts rest on that. A
// thread that has not called yet may do so next, so whoever knows the process's threads is asked as well.
#pragma once

#include <atomic>
#include <thread>

namespace rr {

class CallingThreads {
 public:
  // Whether the process has a thread besides the calling one that could call. Must not wait for a thread that calls.
  using HasOthers = bool (*)();

  // Before operations are called. Null: there is no thread but those that have called.
  void set_has_others(HasOthers has_others) { has_others_.store(has_others, std::memory_order_relaxed); }

  // A thread calls or waits. Whether it is the only one that ever did.
  bool record() {
    const std::thread::id self = std::this_thread::get_id();
    std::thread::id first = first_.load(std::memory_order_relaxed);
    if (first == std::thread::id() && first_.compare_exchange_strong(first, self)) first = self;
    if (first != self) are_many_.store(true, std::memory_order_relaxed);
    return !are_many_.load(std::memory_order_relaxed);
  }
  // Whether other threads than the calling one call, or could.
  bool has_others() const {
    const HasOthers has_others = has_others_.load(std::memory_order_relaxed);
    return are_many_.load(std::memory_order_relaxed) || (has_others != nullptr && has_others());
  }

 private:
  std::atomic<HasOthers> has_others_{nullptr};
  std::atomic<std::thread::id> first_{};
  std::atomic<bool> are_many_{false};
};

}  // namespace rr
