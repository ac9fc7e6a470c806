#include "engine/group/waiter.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "engine/context.h"
#include "engine/shown_wait.h"
#include "operations/recording.h"

namespace rr {
namespace {
constexpr int64_t kToldNs = 2'000'000'000;  // hosts tell each other of an operation after a second (kLateS in group.cc)
constexpr int64_t kQuickToldNs = 300'000'000;  // of a quick one at once, or when an engine that sleeps looks around
constexpr int64_t kOverlookedNs = 500'000;     // so long a leader that is at work may not look at its ranks' notes
constexpr double kVerdictS = 10.0;             // the hosts take so long to settle a verdict, at most
// What all ranks are in when its call is interrupted has so long to end.
constexpr double kFinishS = 10.0;

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

std::string Waiter::call_text(const Operation& operation) const {
  const bool is_message = operation.ticket.tag == 0;
  return (is_message ? called(operation) : called_shortly(operation.kind, operation.name, operation.number)) +
         (parts_.from.id == 0 ? "" : " of process set [" + some_of(parts_.from.world_ranks) + "]");
}

// World ranks. The requests of another host are known here a while later, those for the log once all its ranks have
// called, or the operation takes long: until then nobody there is missed.
std::vector<int> Waiter::missing_for_sure(const Operation& operation) const {
  std::vector<int> missing = parts_.members.missing(operation);
  const bool is_known = operation.ticket.tag == 0 || !parts_.from.hosts.several() ||
                        now_ns() - operation.submitted_ns > (operation.quick ? kQuickToldNs : kToldNs);
  if (is_known) return missing;
  const Hosts& hosts = parts_.context.world().hosts();
  missing.erase(std::remove_if(missing.begin(), missing.end(), [&](int rank) { return !hosts.is_here(rank); }),
                missing.end());
  return missing;
}

std::string Waiter::pending_text(const Operation& operation, double timeout_s) const {
  const std::vector<int> missing = missing_for_sure(operation);
  const Hosts& hosts = parts_.context.world().hosts();
  const bool are_all_here = std::all_of(missing.begin(), missing.end(), [&](int rank) { return hosts.is_here(rank); });
  return parts_.from.where(operation) + " is still pending after " + seconds_text(timeout_s) + " s" +
         (missing.empty() ? "" : "; missing rank(s): " + list_of(missing)) +
         (are_all_here ? "" : " (of other hosts, a call of the last 2 s may not be known here)");
}

// Behind "waits ".
std::string Waiter::waits_for(const Operation& operation) {
  const auto submitted = parts_.submitted.lock();
  return "in " + call_text(operation) + " for rank " + some_of(parts_.members.missing(operation)) + " and called " +
         submitted->calls.last() + " last";
}

// Who has switched off the limit of operations wants to wait for ever.
void Waiter::look_for_deadlock_timeout(DeadlockTimeout::Waiter& waiter, const std::string& waits_for) {
  if (parts_.context.timeout_s() <= 0) return;
  const bool is_any_under_way = parts_.submitted.lock()->pending.is_any_under_way();
  if (!waiter.look(is_any_under_way ? "" : waits_for)) return;
  parts_.context.fail_groups(FatalKind::kMismatch, failure_text(parts_.context.world().control()));
}

// A group that has failed, or a context that is shut down, ends the operations of the log, with an error, once nothing
// uses their memory any more. Until then who waits for one goes on waiting, but not for ever. since_ns: 0 at first.
bool Waiter::is_ending(int64_t& since_ns) const {
  if (!has_failed(parts_.control()) && !parts_.context.is_shut_down()) return false;
  if (since_ns == 0) since_ns = now_ns();
  if (static_cast<double>(now_ns() - since_ns) * 1e-9 > kFinishS) {
    parts_.throw_if_failed();
    parts_.context.throw_if_shut_down();
  }
  return true;
}

bool Waiter::wait_until_finished(Operation& operation, double timeout_s, Interrupt interrupt) {
  const bool is_message = operation.ticket.tag == 0;
  const ShownWait shown(parts_.context.wait_line(), is_message ? WaitLine::kOther : operation.ticket.request_slot + 1,
                        operation.ticket.tag, parts_.from.id,
                        is_message ? 0 : static_cast<uint32_t>(operation.kind) + 1);
  bool blocked = false;
  int64_t over_ns = 0;
  const auto finished = [&] {
    if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
    if (!operation.quick) {
      if (!operation.settled.load(std::memory_order_relaxed) &&
          parts_.negotiation.requests().is_settled(operation.ticket)) {
        parts_.submitted.lock()->pending.settle(operation);
        if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
      }
      if (is_ending(over_ns)) return false;
      return blocked && parts_.negotiation.deadlock().is_withdrawn();
    }
    if (parts_.negotiation.requests().is_settled(operation.ticket)) return true;
    parts_.throw_if_over();
    return blocked && parts_.negotiation.deadlock().is_withdrawn();
  };
  DeadlockTimeout::Waiter waiter(parts_.context.deadlock_timeout());
  // Once its own limit has run out, the caller may call what the others wait for; the group's limit fails the group.
  const double group_timeout_s = parts_.context.timeout_s();
  const auto age_s = [&] { return static_cast<double>(now_ns() - operation.submitted_ns) * 1e-9; };
  const bool goes_on = timeout_s >= 0 && (group_timeout_s <= 0 || timeout_s < group_timeout_s - age_s());
  const auto tick = [&] {
    watchdog_.check(operation);
    if (shown.is_shown()) parts_.context.tell_wait(shown.number(), call_text(operation), missing_for_sure(operation));
    if (operation.ticket.tag == 0) return;
    if (!goes_on)
      look_for_deadlock_timeout(waiter,
                                parts_.negotiation.requests().complete(operation.ticket) ? "" : waits_for(operation));
    // Not under the lock: who knows the process's threads may have to wait for one that wants it.
    const bool may_block = !goes_on && (blocked || !parts_.context.calling_threads().has_others());
    auto submitted = parts_.submitted.lock();
    record_thread(submitted);  // another thread may have submitted what this one waits for, and may submit more
    if (submitted->calls.has_many_threads() || !may_block) return;
    if (!blocked) {
      blocked = true;
      parts_.negotiation.deadlock().block(operation.ticket, submitted->pending.unnamed().next());
    } else {
      parts_.negotiation.deadlock().detect();
    }
  };
  // A leader that waits as well soon reads the note. Another one's engine is woken.
  int64_t overlooked_ns = 0;  // since when
  const auto is_overlooked = [&] {
    const bool is = !is_message && operation.quick && relay_.is_overlooked(operation.ticket);
    const int64_t now = is ? now_ns() : 0;
    if (!is || overlooked_ns == 0) overlooked_ns = now;
    if (now - overlooked_ns < kOverlookedNs) return is;
    relay_.hand_over();
    overlooked_ns = now;
    return false;
  };
  bool in_time = false;
  try {  // std::ref: a wait allocates nothing
    in_time = parts_.context.wait_loop().wait_until(
        std::ref(finished), parts_.has_work,
        timeout_s < 0 ? Deadline::never() : Deadline::after_s(std::max(timeout_s, 1e-9)), interrupt,
        parts_.ranks_outnumber_cores, std::ref(tick), std::ref(is_overlooked));
  } catch (...) {
    if (blocked) unblock();
    throw;
  }
  if (blocked && unblock())
    throw MismatchError(parts_.negotiation.deadlock().verdict().text + " " + parts_.from.where(operation));
  return in_time;
}

// Ends a block; true after a verdict, whose operations of this rank have ended then. While the hosts settle one nobody
// may move: a few messages between leaders. Both in one step: a rank that has raised the verdict may leave at once, and
// this one's engine must not find that an operation still misses it.
bool Waiter::unblock() {
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

void Waiter::await_verdict(const std::function<bool()>& is_over) {
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

bool Waiter::wait(Operation& operation, double timeout_s, Interrupt interrupt) {
  operation.wanted.store(true, std::memory_order_relaxed);
  if (!done(operation)) {
    // A rank that sleeps here executes the log itself; the engine takes over what is left when it leaves, interrupted
    // or not.
    struct HandOver {
      const GroupParts& parts;
      const GroupRelay& relay;
      bool is_told = false;
      ~HandOver() {
        if (!is_told) relay.hand_over();
        if (parts.is_busy() || parts.context.is_in_transit()) parts.context.wait_loop().wake_engine();
      }
    } hand_over{parts_, relay_};
    const RecordedWait recorded(parts_.from, operation);
    if (!wait_until_finished(operation, timeout_s, interrupt)) return false;
    done(operation);
    relay_.tell_rest();  // the last rank's request may have come to this one first
    hand_over.is_told = true;
  } else if (operation.quick) {
    relay_.tell_rest();
  }
  give_back_name(operation);
  if (operation.state.load(std::memory_order_acquire) == State::kFailed) std::rethrow_exception(operation.error);
  return true;
}

bool Waiter::done(Operation& operation) {
  if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
  {
    const auto submitted = parts_.submitted.lock();
    PendingOperations& pending = submitted->pending;
    if (operation.state == State::kPending && operation.quick) pending.try_finish_quick(operation);
    if (!operation.quick) pending.settle(operation);
  }
  if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
  if (operation.quick) parts_.throw_if_failed();
  return false;
}

// True where nothing will read or write the operation's memory any more.
bool Waiter::try_withdraw(Operation& operation) {
  const auto submitted = parts_.submitted.lock();
  PendingOperations& pending = submitted->pending;
  if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
  if (!operation.quick) {  // of a quick one the request slot has a copy
    if (has_failed(parts_.control()) || parts_.context.is_shut_down()) return false;
    if (operation.ticket.tag == 0) return pending.discard_message(operation);
    if (!parts_.negotiation.log().withdraw(operation.ticket)) return false;
  }
  pending.discard(operation);
  return true;
}

bool Waiter::is_under_way(const Operation& operation) const {
  if (operation.ticket.tag == 0) return true;  // its message has begun to arrive
  const Requests& requests = parts_.negotiation.requests();
  return requests.is_decided(operation.ticket) || requests.complete(operation.ticket);
}

void Waiter::finish_complete(Interrupt interrupt) {
  std::vector<OperationPtr> complete;
  {
    const auto submitted = parts_.submitted.lock();
    for (const auto& [request_slot, operation] : submitted->pending.logged()) {
      if (is_under_way(*operation)) complete.push_back(operation);
    }
  }
  for (const OperationPtr& operation : complete) {
    operation->wanted.store(true, std::memory_order_relaxed);
    wait_until_finished(*operation, -1, interrupt);
  }
}

void Waiter::fail_as_interrupted(const std::string& operation, const std::string& cause) const {
  record_failure(parts_.control(), FatalKind::kMismatch,
                 operation + ": an exception, such as KeyboardInterrupt, ended this rank's call, and " + cause);
}

void Waiter::withdraw(Operation& operation, Interrupt interrupt) {
  const auto is_pending = [&] { return operation.state.load(std::memory_order_acquire) == State::kPending; };
  const auto fail = [&](const std::string& cause) {  // a rank that is shut down leaves, which is for its peers to see
    if (is_pending() && !parts_.context.is_shut_down()) fail_as_interrupted(parts_.from.where(operation), cause);
  };
  try {
    if (try_withdraw(operation)) return;
    const bool is_finishable = is_under_way(operation);
    if (is_finishable) wait(operation, kFinishS, interrupt);
    fail(is_finishable ? "it did not finish within " + seconds_text(kFinishS) + " s more"
                       : "what other hosts may have been told of cannot be withdrawn");
  } catch (...) {  // its own error, that of the group, or that a second signal has come
    fail("another one ended the wait for its end");
  }
  // Whoever executes the log sees the failure between two steps, and lets go.
  const Deadline deadline = Deadline::after_s(kFinishS);
  while (is_pending() && !deadline.passed()) {
    if (!parts_.context.is_shut_down()) parts_.context.try_progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool Waiter::poll(Operation& operation) {
  operation.wanted.store(true, std::memory_order_relaxed);
  const bool is_pending = operation.state.load(std::memory_order_acquire) == State::kPending;
  if (is_pending && (!operation.quick || relay_.exists())) parts_.context.try_progress();
  if (is_pending) relay_.hand_over();
  try {
    if (!done(operation)) {
      watchdog_.check_age(operation);
      return false;
    }
  } catch (const Error&) {
    return true;  // wait() will not block: it raises this
  }
  give_back_name(operation);
  return true;
}

void Waiter::give_back_name(const Operation& operation) {
  if (!operation.name.empty()) parts_.submitted.lock()->pending.give_back_name(operation);
}

void Waiter::wait_until(const std::function<bool()>& done, Interrupt interrupt, const std::function<void()>& tick) {
  parts_.context.wait_loop().wait_until(done, parts_.has_work, Deadline::never(), interrupt,
                                        parts_.ranks_outnumber_cores, tick, [] { return true; });
}

void Waiter::wait_for_window(GroupParts::Locked& submitted, bool eager, Operation& waiting, Interrupt interrupt) {
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
      watchdog_.check_window(waiting);
      look_for_deadlock_timeout(waiter, "to call " + called_shortly(waiting.kind, waiting.name, waiting.number) +
                                            ", too far ahead of a rank that has not called what came before");
    };
    wait_until(moved_on, interrupt, tick);
    submitted.lock();
  }
}

void Waiter::record_thread(GroupParts::Locked& submitted, bool is_from_queue) {
  if (!is_from_queue) submitted->calls.record_caller();
  if (!parts_.context.calling_threads().record()) lift_block(submitted);
}

void Waiter::lift_block(GroupParts::Locked& submitted) {
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
  submitted->calls.set_many_threads();
}

// Why no operation of a name can be announced now.
std::string Waiter::why_no_name() const {
  const Names& names = parts_.negotiation.names();
  const auto world_rank = [this](int r) { return parts_.from.world_ranks[static_cast<size_t>(r)]; };
  if (!names.is_all_passed_on()) {
    return "rank " + std::to_string(world_rank(parts_.from.hosts.leader_here())) +
           ", the leader of this host, has not told the other hosts what came before";
  }
  if (!names.has_room()) {
    return "all " + std::to_string(parts_.control().capacity()) +
           " tensor names of the group are in flight; if that is usual, raise RINGREDUCE_CACHE_CAPACITY";
  }
  std::vector<int> joined;
  for (const int r : parts_.from.hosts.here()) {
    if (parts_.control().line(r).joined.load() != 0) joined.push_back(world_rank(r));
  }
  return "an earlier operation of this name has not ended on rank(s) " + list_of(joined) + ", which joined";
}

// All names of the table are in flight, or a rank that has joined has not consumed this one.
void Waiter::wait_for_name(GroupParts::Locked& submitted, Operation& waiting, Interrupt interrupt,
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
    look_for_deadlock_timeout(
        waiter, "to call " + called_shortly(waiting.kind, waiting.name, waiting.number) + ", because " + why);
    if (parts_.members.fail_if_unread(waiting)) return;
    watchdog_.check_unsubmitted(waiting, why);
    const double warning_s = parts_.from.settings.stall_warning_s;
    const double age_s = static_cast<double>(now_ns() - waiting.submitted_ns) * 1e-9;
    if (warning_s <= 0 || age_s < warning_s || waiting.warned.exchange(true)) return;
    parts_.from.log.warning(parts_.from.where(waiting) + " waits because " + why);
  };
  wait_until(announced, interrupt, tick);
  submitted.lock();
}

}  // namespace rr
