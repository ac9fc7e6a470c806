// How a thread waits in a group for an operation. Who waits executes the log meanwhile, and looks around now and then.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/group/wait/deadlock_watch.h"
#include "engine/group/wait/watchdog.h"

namespace rr {

class Waiter {
 public:
  Waiter(const GroupParts& parts, const GroupRelay& relay, Watchdog& watchdog, DeadlockWatch& deadlock_watch)
      : parts_(parts), relay_(relay), watchdog_(watchdog), deadlock_watch_(deadlock_watch) {}

  // Raises the operation's error. False when timeout_s (< 0: none) ran out first.
  bool wait(Operation& operation, double timeout_s, Interrupt interrupt);
  // What a TimeoutError says of an operation for which wait() has returned false.
  std::string pending_text(const Operation& operation, double timeout_s) const;
  // The same as wait(), without its error. For a quick operation: true once all requests are there.
  bool wait_until_finished(Operation& operation, double timeout_s, Interrupt interrupt);
  bool done(Operation& operation);
  // done(), for a caller that does not wait: gives the operation a push, and the name back once it has finished.
  bool poll(Operation& operation);
  // Until done() is true, whatever time that takes.
  void wait_until(const std::function<bool()>& done, Interrupt interrupt, const std::function<void()>& tick);

 private:
  bool is_ending(const Operation& operation, int64_t& since_ns) const;
  std::string call_text(const Operation& operation) const;
  std::vector<int> missing_for_sure(const Operation& operation) const;
  std::string waits_for(const Operation& operation);
  void give_back_name(const Operation& operation);

  const GroupParts& parts_;
  const GroupRelay& relay_;
  Watchdog& watchdog_;
  DeadlockWatch& deadlock_watch_;
};

}  // namespace rr
