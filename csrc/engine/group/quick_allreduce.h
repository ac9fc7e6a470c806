// The synchronous all-reduce of a few bytes. Announce, look at the others' requests, compute: no allocation and no
// table.
#pragma once

#include <string>

#include "engine/group/joining.h"

namespace rr {

class QuickAllreduce {
 public:
  QuickAllreduce(const GroupParts& parts, const GroupRelay& relay, Waiter& waiter, DeadlockWatch& deadlock_watch,
                 const Joining& joining)
      : parts_(parts), relay_(relay), waiter_(waiter), deadlock_watch_(deadlock_watch), joining_(joining) {}

  // True when it has been done. False when it cannot be done so (then submit it).
  bool run(const TensorView& src, const TensorView& dst, const Reduction& reduction, Interrupt interrupt, Codec codec);

 private:
  // What run() has announced.
  struct Call {
    const TensorView& src;
    const TensorView& dst;
    const Reduction& reduction;
    const Signature& signature;
    Ticket ticket;
    uint64_t number;
    RankMask participants;
  };
  // An operation has six vectors and a string, so it is made for a call only that waits, is recorded or is refused.
  static void describe(const Call& call, Operation& operation);
  // Waits unless the call is complete already, and records the call where records are on. called: when it began as
  // recorder.moment_of_call() tells it; 0: records are off.
  void finish_as_operation(Call& call, bool is_complete, int64_t called, Interrupt interrupt);
  void await(Operation& operation, int64_t called, Interrupt interrupt);
  // All have announced it: computes the result. False when they announced different things: mismatch says which.
  bool compute(const Call& call, std::string& mismatch) const;
  [[noreturn]] void refuse(const Call& call, const std::string& mismatch) const;

  const GroupParts& parts_;
  const GroupRelay& relay_;
  Waiter& waiter_;
  DeadlockWatch& deadlock_watch_;
  const Joining& joining_;
};

}  // namespace rr
