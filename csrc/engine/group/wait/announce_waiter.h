// How a call waits that cannot be announced yet: for room in the window of unnamed operations, or for a free name.
#pragma once

#include <functional>
#include <string>

#include "engine/group/wait/waiter.h"

namespace rr {

class AnnounceWaiter {
 public:
  AnnounceWaiter(const GroupParts& parts, const Watchdog& watchdog, const DeadlockWatch& deadlock_watch, Waiter& waiter)
      : parts_(parts), watchdog_(watchdog), deadlock_watch_(deadlock_watch), waiter_(waiter) {}

  // A rank too far ahead of the others waits here, finishing its own older operations meanwhile. waiting: what it is
  // about to announce. eager: with data in an eager buffer.
  void wait_for_window(GroupParts::Locked& submitted, bool eager, Operation& waiting, Interrupt interrupt);
  // Waits until announce() is true, which is called again and again: for a free name.
  void wait_for_name(GroupParts::Locked& submitted, Operation& waiting, Interrupt interrupt,
                     const std::function<bool(PendingOperations&)>& announce);

 private:
  std::string why_no_name() const;
  OperationPtr oldest_pending() const;  // null: none

  const GroupParts& parts_;
  const Watchdog& watchdog_;
  const DeadlockWatch& deadlock_watch_;
  Waiter& waiter_;
};

}  // namespace rr
