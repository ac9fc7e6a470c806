// The synchronous all-reduce of a few bytes. Announce, look at the others' requests, compute: no allocation and no
// table.
#pragma once

#include "engine/group/joining.h"

namespace rr {

class QuickAllreduce {
 public:
  QuickAllreduce(const GroupParts& parts, const GroupRelay& relay, Waiter& waiter, const Joining& joining)
      : parts_(parts), relay_(relay), waiter_(waiter), joining_(joining) {}

  // True when it has been done. False when it cannot be done so (then submit it).
  bool run(const TensorView& src, const TensorView& dst, const Reduction& reduction, Interrupt interrupt, Codec codec);

 private:
  const GroupParts& parts_;
  const GroupRelay& relay_;
  Waiter& waiter_;
  const Joining& joining_;
};

}  // namespace rr
