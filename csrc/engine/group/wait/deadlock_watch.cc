#include "engine/group/wait/deadlock_watch.h"

#include <functional>
#include <optional>
#include <string>

#include "engine/context.h"
#include "negotiation/segment/failure.h"

namespace rr {
namespace {
constexpr double kVerdictS = 10.0;  // the hosts take so long to settle a verdict, at most
}  // namespace

void DeadlockWatch::record_thread(GroupParts::Locked& submitted, bool is_from_queue) {
  if (!is_from_queue) submitted->calls.record_caller();
  if (!parts_.context.calling_threads().record()) lift_block(submitted);
}

void DeadlockWatch::report_wait(const Operation& operation, bool is_for_good, bool& is_blocked) {
  // Not under the lock: who knows the process's threads may have to wait for one that wants it.
  const bool may_block = is_for_good && (is_blocked || !parts_.context.calling_threads().has_others());
  auto submitted = parts_.submitted.lock();
  record_thread(submitted);  // another thread may have submitted what this one waits for, and may submit more
  if (submitted->calls.has_many_threads() || !may_block) return;
  if (!is_blocked) {
    is_blocked = true;
    parts_.negotiation.deadlock().block(operation.ticket, submitted->pending.unnamed().next());
  } else {
    parts_.negotiation.deadlock().detect();
  }
}

void DeadlockWatch::lift_block(GroupParts::Locked& submitted) {
  while (!submitted->calls.has_many_threads() && !parts_.negotiation.deadlock().lift_block()) {
    submitted.unlock();
    const auto gone_on = [this] {
      return !parts_.negotiation.deadlock().is_frozen() || has_failed(parts_.control()) ||
             parts_.context.is_shut_down();
    };
    await_verdict(gone_on);
    submitted.lock();
    if (has_failed(parts_.control()) || parts_.context.is_shut_down()) break;
  }
  // Before this thread takes a number: all ranks go on behind those of the verdict.
  if (parts_.negotiation.deadlock().is_withdrawn()) submitted->pending.withdraw();
  submitted->calls.set_many_threads();
}

// Ends a block; true after a verdict, whose operations of this rank have ended then. While the hosts settle one nobody
// may move: a few messages between leaders. Both in one step: a rank that has raised the verdict may leave at once, and
// this one's engine must not find that an operation still misses it.
bool DeadlockWatch::unblock() {
  std::optional<bool> withdrawn;
  const auto unblocked = [&] {
    const auto submitted = parts_.submitted.lock();
    withdrawn = parts_.negotiation.deadlock().unblock(has_failed(parts_.control()) || parts_.context.is_shut_down());
    if (withdrawn.value_or(false)) submitted->pending.withdraw();
    return withdrawn.has_value();
  };
  if (!unblocked()) await_verdict(unblocked);
  return withdrawn.value_or(false);
}

void DeadlockWatch::await_verdict(const std::function<bool()>& is_over) const {
  const bool in_time = parts_.context.wait_loop().wait_until(is_over, parts_.has_work, Deadline::after_s(kVerdictS),
                                                             nullptr, parts_.ranks_outnumber_cores, [] {});
  if (in_time) return;
  record_failure(parts_.control(), FatalKind::kTimeout,
                 parts_.from.here() + "] rank " +
                     std::to_string(parts_.from.world_ranks[static_cast<size_t>(parts_.from.hosts.leader(0))]) +
                     ", which decides for all hosts, did not say within " +
                     std::to_string(static_cast<int>(kVerdictS)) + " s whether all ranks are stuck");
  is_over();
}

// Who has switched off the limit of operations wants to wait for ever.
void DeadlockWatch::look_for_timeout(DeadlockTimeout::Waiter& waiter, const std::string& waits_for) const {
  if (parts_.context.timeout_s() <= 0) return;
  const bool is_any_under_way = parts_.submitted.lock()->pending.is_any_under_way();
  if (!waiter.look(is_any_under_way ? "" : waits_for)) return;
  parts_.context.fail_groups(FatalKind::kMismatch, failure_text(parts_.context.world().control()));
}

}  // namespace rr
