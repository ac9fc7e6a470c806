// How a rank's part in a group ends: by shutdown(), by the removal of the process set, or because the group has failed.
// What is pending here then ends with an error.
#pragma once

#include <string>
#include <vector>

#include "engine/group/executor.h"
#include "engine/group/group_relay.h"
#include "engine/group/joining.h"

namespace rr {

class GroupEnd {
 public:
  GroupEnd(GroupParts& parts, Executor& executor, GroupRelay& relay, const PendingCounts& counts,
           const Joining& joining)
      : parts_(parts), executor_(executor), relay_(relay), counts_(counts), joining_(joining) {}

  // Executor lock held, for all below.
  // The group has failed. True when something was pending.
  bool fail_pending();
  // The rank shuts down, and the engine is gone. cause: see RankCause.
  static void leave(const std::vector<GroupEnd*>& ends, const std::string& cause);
  // All members have agreed to end the group.
  void remove();

 private:
  void mark_left(Attendance how) const;
  void fail_as_shut_down();
  void ring_own() const;

  GroupParts& parts_;
  Executor& executor_;
  GroupRelay& relay_;
  const PendingCounts& counts_;
  const Joining& joining_;
};

}  // namespace rr
