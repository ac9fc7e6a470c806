// How a rank says that it has no more data: join(), and what may not be called after it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "engine/group/wait/waiter.h"

namespace rr {

class Joining {
 public:
  Joining(const GroupParts& parts, Waiter& waiter, DeadlockWatch& deadlock_watch)
      : parts_(parts), waiter_(waiter), deadlock_watch_(deadlock_watch) {}

  // Blocks until all ranks have joined, and returns the one that joined last. announce_rest: announces what has been
  // called on a GPU. A call that was interrupted is taken up by the next one.
  int join(Interrupt interrupt, const std::function<void()>& announce_rest);
  // This rank is in join(), or was when an interrupt ended the call: it still has to skip what the others log.
  bool is_joining() const {
    return is_called() || (has_joined_.load(std::memory_order_relaxed) && !has_failed(parts_.control()));
  }
  bool is_called() const { return called_.load(std::memory_order_relaxed) != 0; }  // by a thread that is in it
  bool has_joined() const { return has_joined_.load(); }                           // has told the others
  // The submitted operations are locked. Throws where this rank has said that nothing more comes.
  void throw_if_closed(Kind kind) const {
    const bool is_called_now = is_called();
    if (parts_.is_removed.load() || is_called_now || has_joined_.load()) throw_closed(kind, is_called_now);
  }

 private:
  void drain();
  void check_age(int64_t& since_ns) const;
  [[noreturn]] void throw_closed(Kind kind, bool is_called_now) const;

  const GroupParts& parts_;
  Waiter& waiter_;
  DeadlockWatch& deadlock_watch_;
  // Set under the lock of what is submitted, and read without it where an old value does no harm.
  std::atomic<uint32_t> called_{0};      // 1: a thread is in join(); it takes that back without the lock
  std::atomic<bool> has_joined_{false};  // this rank has told the others, and they have not all joined
  uint64_t epoch_ = 0;                   // then: of this join
  bool has_drained_ = false;             // and whether it has told them that nothing of it is left
};

}  // namespace rr
