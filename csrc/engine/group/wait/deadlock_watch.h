// What a rank tells of its waits, so that all ranks learn when none of them can go on: by proof, when the only thread
// of each is blocked in an operation that another one has not called (Deadlock), and by a limit of time
// (DeadlockTimeout).
#pragma once

#include <functional>
#include <string>

#include "engine/group/group_parts.h"
#include "negotiation/deadlock_timeout.h"

namespace rr {

class DeadlockWatch {
 public:
  explicit DeadlockWatch(const GroupParts& parts) : parts_(parts) {}

  // A thread calls or waits: where another one's wait has been told to the other ranks as that of this rank's only
  // thread, that is taken back. is_from_queue: it is the device queue's own, which submits what others have called.
  void record_thread(GroupParts::Locked& submitted, bool is_from_queue = false);
  // A thread goes on waiting for the operation. is_for_good: it calls nothing before the operation has ended. Sets
  // is_blocked once the other ranks have been told; then the caller ends its wait by unblock().
  void report_wait(const Operation& operation, bool is_for_good, bool& is_blocked);
  // True after a verdict, whose operations of this rank have ended then.
  bool unblock();
  // waits_for: what the thread waits for, in words; "": all ranks have called it.
  void look_for_timeout(DeadlockTimeout::Waiter& waiter, const std::string& waits_for) const;

 private:
  void lift_block(GroupParts::Locked& submitted);
  void await_verdict(const std::function<bool()>& is_over) const;

  const GroupParts& parts_;
};

}  // namespace rr
