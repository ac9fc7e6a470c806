// Group: waiting for operations, and who is stuck in it.

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {
namespace {
constexpr double kVerdictS = 10.0;  // the hosts take so long to settle a verdict, at most

// A text about all ranks has room for so many of the ranks that each of them misses.
constexpr size_t kShownRanks = 4;

std::string some_of(std::vector<int> ranks) {
  if (ranks.size() <= kShownRanks) return list_of(ranks);
  const std::string others = std::to_string(ranks.size() - kShownRanks);
  ranks.resize(kShownRanks);
  return list_of(ranks) + " and " + others + " more";
}
}  // namespace

// Behind "waits ".
std::string Group::waits_for(const Operation& operation) {
  const Locked submitted = submitted_.lock();
  return "in " + called_shortly(operation.kind, operation.name, operation.number) +
         (id_ == 0 ? "" : " of process set [" + some_of(world_ranks_) + "]") + " for rank " +
         some_of(members_.missing(operation)) + " and called " + submitted->calls.last() + " last";
}

// Who has switched off the limit of operations wants to wait for ever.
void Group::look_for_deadlock_timeout(DeadlockTimeout::Waiter& waiter, const std::string& waits_for) {
  if (context_.timeout_s() <= 0) return;
  const bool is_any_under_way = submitted_.lock()->pending.is_any_under_way();
  if (!waiter.look(is_any_under_way ? "" : waits_for)) return;
  context_.fail_groups(FatalKind::kMismatch, failure_text(context_.world().control()));
}

bool Group::wait_until_finished(Operation& operation, double timeout_s, Interrupt interrupt) {
  bool blocked = false;
  const auto finished = [&] {
    if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
    if (!operation.quick) {
      if (!operation.settled.load(std::memory_order_relaxed) && negotiation_.is_settled(operation.ticket)) {
        submitted_.lock()->pending.settle(operation);
        return operation.state.load(std::memory_order_acquire) != State::kPending;
      }
      throw_if_failed();
      context_.throw_if_shut_down();
      return blocked && negotiation_.withdrawn();
    }
    if (negotiation_.is_settled(operation.ticket)) return true;
    throw_if_failed();
    throw_if_removed();
    context_.throw_if_shut_down();
    return blocked && negotiation_.withdrawn();
  };
  DeadlockTimeout::Waiter waiter(context_.deadlock_timeout());
  const auto tick = [&] {
    check_age(operation, now_ns());
    members_.fail_if_left(operation);
    fail_if_other_memory(operation);
    if (operation.ticket.tag == 0) return;
    if (timeout_s < 0)
      look_for_deadlock_timeout(waiter, negotiation_.complete(operation.ticket) ? "" : waits_for(operation));
    Locked submitted = submitted_.lock();
    record_thread(submitted);  // another thread may have submitted what this one waits for, and may submit more
    if (submitted->calls.has_many_threads()) return;
    if (!blocked) {
      blocked = true;
      negotiation_.block(operation.ticket, submitted->pending.unnamed().next());
    } else {
      negotiation_.detect_deadlock();
    }
  };
  bool in_time = false;
  try {
    in_time = context_.wait_until(
        finished, [this] { return has_work(); },
        timeout_s < 0 ? Deadline::never() : Deadline::after_s(std::max(timeout_s, 1e-9)), interrupt, crowded_, tick);
  } catch (...) {
    if (blocked) unblock();
    throw;
  }
  if (blocked && unblock()) throw MismatchError(negotiation_.withdraw_text() + " " + where(operation));
  return in_time;
}

// Ends a block; true after a verdict, whose operations of this rank have ended then. While the hosts settle one nobody
// may move: a few messages between leaders. Both in one step: a rank that has raised the verdict may leave at once, and
// this one's engine must not find that an operation still misses it.
bool Group::unblock() {
  std::optional<bool> withdrawn;
  const auto unblocked = [&] {
    const Locked submitted = submitted_.lock();
    withdrawn = negotiation_.unblock(has_failed(control_) || context_.is_shut_down());
    if (withdrawn.value_or(false)) submitted->pending.withdraw();
    return withdrawn.has_value();
  };
  if (!unblocked()) await_verdict(unblocked);
  return withdrawn.value_or(false);
}

void Group::await_verdict(const std::function<bool()>& is_over) {
  const bool in_time = context_.wait_until(
      is_over, [this] { return has_work(); }, Deadline::after_s(kVerdictS), nullptr, crowded_, [] {});
  if (in_time) return;
  record_failure(control_, FatalKind::kTimeout,
                 here() + "] rank " + std::to_string(world_ranks_[static_cast<size_t>(hosts_.leader(0))]) +
                     ", which decides for all hosts, did not say within " +
                     std::to_string(static_cast<int>(kVerdictS)) + " s whether all ranks are stuck");
  is_over();
}

bool Group::wait(Operation& operation, double timeout_s, Interrupt interrupt) {
  operation.wanted.store(true, std::memory_order_relaxed);
  if (!done(operation)) {
    // A rank that sleeps here executes the log itself; the engine takes over what is left when it leaves, interrupted
    // or not.
    struct HandOver {
      Group& group;
      ~HandOver() {
        if (group.has_work() || group.context_.is_in_transit()) group.context_.wake_engine();
      }
    } hand_over{*this};
    if (!wait_until_finished(operation, timeout_s, interrupt)) return false;
    done(operation);
  } else if (operation.quick) {
    pass_on();
  }
  give_back_name(operation);
  if (operation.state.load(std::memory_order_acquire) == State::kFailed) std::rethrow_exception(operation.error);
  return true;
}

bool Group::done(Operation& operation) {
  if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
  {
    const Locked submitted = submitted_.lock();
    PendingOperations& pending = submitted->pending;
    if (operation.state == State::kPending && operation.quick) pending.try_finish_quick(operation);
    if (!operation.quick) pending.settle(operation);
  }
  if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
  throw_if_failed();
  return false;
}

bool Group::poll(Operation& operation) {
  operation.wanted.store(true, std::memory_order_relaxed);
  if (!operation.quick && operation.state.load(std::memory_order_acquire) == State::kPending) context_.try_progress();
  try {
    if (!done(operation)) {
      check_age(operation, now_ns());
      return false;
    }
  } catch (const Error&) {
    return true;  // wait() will not block: it raises this
  }
  give_back_name(operation);
  return true;
}

void Group::give_back_name(const Operation& operation) {
  if (!operation.name.empty()) submitted_.lock()->pending.give_back_name(operation);
}

}  // namespace rr
