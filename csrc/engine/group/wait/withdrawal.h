// How an operation ends whose caller does not wait for it any more.
#pragma once

#include <string>

#include "engine/group/wait/waiter.h"

namespace rr {

class Withdrawal {
 public:
  Withdrawal(const GroupParts& parts, Waiter& waiter) : parts_(parts), waiter_(waiter) {}

  // For a synchronous call that an exception has ended: afterwards nothing of this process reads or writes the
  // operation's memory. What all ranks are in is finished first, unless interrupt() throws meanwhile; what not all have
  // called is withdrawn, and the others get an error that says so. Where neither can be done the group fails.
  void withdraw(Operation& operation, Interrupt interrupt);
  // The group fails because an operation of this rank was given up. cause: behind the operation.
  void fail_as_interrupted(const std::string& operation, const std::string& cause) const;
  // Whether all ranks have called it, as far as this host knows.
  bool is_under_way(const Operation& operation) const;
  // Ends all such operations, and waits for those of the log. Their results and errors are for who waits for them.
  void finish_complete(Interrupt interrupt);

 private:
  bool try_withdraw(Operation& operation) const;

  const GroupParts& parts_;
  Waiter& waiter_;
};

}  // namespace rr
