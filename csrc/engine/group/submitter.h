// From a call to a request that the other ranks see.
#pragma once

#include <memory>

#include "engine/group/joining.h"
#include "engine/group/wait/announce_waiter.h"

namespace rr {

class Submitter {
 public:
  Submitter(const GroupParts& parts, Executor& executor, const GroupRelay& relay, DeadlockWatch& deadlock_watch,
            AnnounceWaiter& announce_waiter, const Joining& joining)
      : parts_(parts),
        executor_(executor),
        relay_(relay),
        deadlock_watch_(deadlock_watch),
        announce_waiter_(announce_waiter),
        joining_(joining) {}

  OperationPtr submit(const Request& request, Interrupt interrupt);
  void check_request(const Request& request) const;  // throws what submit() would, as far as this rank can tell
  // A message to or from a rank of the group.
  OperationPtr message(const TensorView& tensor, int peer, int tag, std::shared_ptr<void> keep, bool outgoing);
  void check_peer(int peer, bool outgoing) const;

 private:
  OperationPtr make(const Request& request) const;
  void announce(const OperationPtr& operation, const Request& request, Interrupt interrupt);

  const GroupParts& parts_;
  Executor& executor_;
  const GroupRelay& relay_;
  DeadlockWatch& deadlock_watch_;
  AnnounceWaiter& announce_waiter_;
  const Joining& joining_;
};

}  // namespace rr
