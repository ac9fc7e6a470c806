// How a thread waits in a group: for an operation, for room to announce another one, for a verdict. Who waits executes
// the log meanwhile, and looks around now and then.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/group/watchdog.h"
#include "negotiation/deadlock_timeout.h"

namespace rr {

class Waiter {
 public:
  Waiter(const GroupParts& parts, const GroupRelay& relay, Watchdog& watchdog)
      : parts_(parts), relay_(relay), watchdog_(watchdog) {}

  // Raises the operation's error. False when timeout_s (< 0: none) ran out first.
  bool wait(Operation& operation, double timeout_s, Interrupt interrupt);
  // What a TimeoutError says of an operation for which wait() has returned false.
  std::string pending_text(const Operation& operation, double timeout_s) const;
  // The same as wait(), without its error. For a quick operation: true once all requests are there.
  bool wait_until_finished(Operation& operation, double timeout_s, Interrupt interrupt);
  // For a synchronous call that an exception has ended: afterwards nothing of this process reads or writes the
  // operation's memory. What all ranks are in is finished first, unless interrupt() throws meanwhile; what not all have
  // called is withdrawn, and the others get an error that says so. Where neither can be done the group fails.
  void withdraw(Operation& operation, Interrupt interrupt);
  // The group fails because an operation of this rank was given up. cause: behind the operation.
  void fail_as_interrupted(const std::string& operation, const std::string& cause) const;
  // Whether all ranks have called it, as far as this host knows.
  bool is_under_way(const Operation& operation) const;
  // Waits until all such operations of the log have ended. Their results and errors are for who waits for them.
  void finish_complete(Interrupt interrupt);
  bool done(Operation& operation);
  // done(), for a caller that does not wait: gives the operation a push, and the name back once it has finished.
  bool poll(Operation& operation);
  // Until done() is true, whatever time that takes.
  void wait_until(const std::function<bool()>& done, Interrupt interrupt, const std::function<void()>& tick);

  // A thread calls or waits: where another one's wait has been told to the other ranks as that of this rank's only
  // thread, that is taken back. is_from_queue: it is the device queue's own, which submits what others have called.
  void record_thread(GroupParts::Locked& submitted, bool is_from_queue = false);
  // A rank too far ahead of the others waits here, finishing its own older operations meanwhile. waiting: what it is
  // about to announce. eager: with data in an eager buffer.
  void wait_for_window(GroupParts::Locked& submitted, bool eager, Operation& waiting, Interrupt interrupt);
  // Waits until announce() is true, which is called again and again: for a free name.
  void wait_for_name(GroupParts::Locked& submitted, Operation& waiting, Interrupt interrupt,
                     const std::function<bool(PendingOperations&)>& announce);

 private:
  void lift_block(GroupParts::Locked& submitted);
  bool unblock();
  bool try_withdraw(Operation& operation);
  bool is_ending(int64_t& since_ns) const;
  void await_verdict(const std::function<bool()>& is_over);
  std::string call_text(const Operation& operation) const;
  std::vector<int> missing_for_sure(const Operation& operation) const;
  std::string waits_for(const Operation& operation);
  std::string why_no_name() const;
  void look_for_deadlock_timeout(DeadlockTimeout::Waiter& waiter, const std::string& waits_for);
  void give_back_name(const Operation& operation);

  const GroupParts& parts_;
  const GroupRelay& relay_;
  Watchdog& watchdog_;
};

}  // namespace rr
