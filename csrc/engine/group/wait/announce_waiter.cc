#include "engine/group/wait/announce_waiter.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "engine/context.h"

namespace rr {
namespace {
// A thread that waits until others have consumed: they ring then.
class RoomWait {
 public:
  explicit RoomWait(const ControlSegment& control) : waiters_(control.header().room_waiters) { waiters_.fetch_add(1); }
  ~RoomWait() { waiters_.fetch_sub(1); }
  RoomWait(const RoomWait&) = delete;
  RoomWait& operator=(const RoomWait&) = delete;

 private:
  std::atomic<uint32_t>& waiters_;
};

}  // namespace

void AnnounceWaiter::wait_for_window(GroupParts::Locked& submitted, bool eager, Operation& waiting,
                                     Interrupt interrupt) {
  while (!submitted->pending.unnamed().has_room(eager)) {
    submitted.unlock();
    const RoomWait waiting_for_room(parts_.control());
    const auto moved_on = [&] {
      parts_.throw_if_over();
      const auto inner = parts_.submitted.lock();
      inner->pending.push_unnamed();
      return inner->pending.unnamed().has_room(eager);
    };
    DeadlockTimeout::Waiter waiter(parts_.context.deadlock_timeout());
    const auto tick = [&] {
      watchdog_.check_window(waiting, eager);
      deadlock_watch_.look_for_timeout(waiter, "to call " + called_shortly(waiting.kind, waiting.name, waiting.number) +
                                                   ", too far ahead of a rank that has not called what came before");
    };
    waiter_.wait_until(moved_on, interrupt, tick);
    submitted.lock();
  }
}

// Why no operation of a name can be announced now.
std::string AnnounceWaiter::why_no_name() const {
  const Names& names = parts_.negotiation.names();
  if (!names.is_all_passed_on()) return parts_.members.leader_is_behind();
  if (!names.has_room()) {
    return "all " + std::to_string(parts_.control().capacity()) +
           " tensor names of the group are in flight; if that is usual, raise RINGREDUCE_CACHE_CAPACITY";
  }
  std::vector<int> joined;
  for (const int r : parts_.from.hosts.here()) {
    if (parts_.control().line(r).joined.load() != 0) joined.push_back(parts_.from.world_ranks[static_cast<size_t>(r)]);
  }
  return "an earlier operation of this name has not ended on rank(s) " + list_of(joined) + ", which joined";
}

OperationPtr AnnounceWaiter::oldest_pending() const {
  const auto submitted = parts_.submitted.lock();
  PendingOperations& pending = submitted->pending;
  for (const OperationPtr& operation : pending.oldest_first()) {
    operation->quick ? void(pending.try_finish_quick(*operation)) : pending.settle(*operation);
    if (operation->state == State::kPending && !operation->discard) return operation;
  }
  return nullptr;
}

// All names of the table are in flight, or a rank that has joined has not consumed this one.
void AnnounceWaiter::wait_for_name(GroupParts::Locked& submitted, Operation& waiting, Interrupt interrupt,
                                   const std::function<bool(PendingOperations&)>& announce) {
  submitted.unlock();
  const RoomWait waiting_for_room(parts_.control());
  const auto announced = [&] {
    parts_.throw_if_failed();
    parts_.context.throw_if_shut_down();
    const auto inner = parts_.submitted.lock();
    inner->pending.push_named();
    return announce(inner->pending);
  };
  DeadlockTimeout::Waiter waiter(parts_.context.deadlock_timeout());
  const auto tick = [&] {
    const std::string why = why_no_name();
    deadlock_watch_.look_for_timeout(
        waiter, "to call " + called_shortly(waiting.kind, waiting.name, waiting.number) + ", because " + why);
    if (parts_.members.fail_if_unread(waiting)) return;
    // It has waited for longer, and its error names the ranks that are missing.
    if (const OperationPtr oldest = oldest_pending(); oldest != nullptr) watchdog_.check_age(*oldest);
    watchdog_.check_unsubmitted(waiting, why);
  };
  waiter_.wait_until(announced, interrupt, tick);
  submitted.lock();
}

}  // namespace rr
