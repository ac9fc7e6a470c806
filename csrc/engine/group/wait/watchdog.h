// What is checked a few times a second while somebody waits, and by the engine: members that died or left, operations
// that take too long. What it finds fails the group, so that every rank hears of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/group/executor.h"
#include "engine/group/group_relay.h"
#include "engine/group/wait/late_operations.h"

namespace rr {

class Watchdog {
 public:
  Watchdog(const GroupParts& parts, Executor& executor, const GroupRelay& relay)
      : parts_(parts), executor_(executor), relay_(relay), late_(parts) {}

  // Executor lock held. Looks after all that is pending.
  void look();
  // For a thread that waits for the shared lock, whose holder may have died or be stopped: no operation has an age
  // then. Throws what it finds.
  void look_at_lock_holders() const;

  // For one operation, which need not be in a table.
  void check(Operation& operation) const;  // a member that has left or calls on other memory; its age
  void check_age(Operation& operation) const { check_age(operation, now_ns()); }
  // The same of an operation that has no place yet in which the other ranks would see it. why: "all names are in use".
  void check_unsubmitted(Operation& waiting, const std::string& why) const;
  // The operation waits for room in the window, which moves when every rank has consumed its oldest operation: if that
  // takes too long, or a rank has left, it has failed.
  void check_window(Operation& waiting, bool eager) const;

 private:
  void check_age(Operation& operation, int64_t now) const;
  std::optional<std::string> why_late(const Operation& operation, bool is_final) const;
  void fail_if_needed_rank_left(const PendingOperations& pending, const std::vector<int>& cut_off) const;
  void fail_if_cut(const PendingOperations& pending, int rank) const;
  void fail_if_nobody_can_send(const PendingOperations& pending, const std::vector<int>& cut_off) const;
  void fail_if_out_of_order(const PendingOperations& pending) const;
  void fail_if_unresponsive() const;
  void fail_with_world() const;
  void mark_left_with_world();
  void fail_if_other_memory(const Operation& operation) const;

  const GroupParts& parts_;
  Executor& executor_;
  const GroupRelay& relay_;
  mutable LateOperations late_;
  std::vector<int64_t> left_world_ns_;  // by group rank, how long it has been seen to have left the world
  int64_t marked_ns_ = 0;               // when that was looked at last
};

}  // namespace rr
