#include "engine/group/wait/waiter.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "engine/context.h"
#include "engine/shown_wait.h"
#include "operations/recording.h"

namespace rr {
namespace {
constexpr int64_t kToldNs =
    2'000'000'000;  // hosts tell each other of an operation after a second (kLateS in group_links.cc)
constexpr int64_t kQuickToldNs = 300'000'000;  // of a quick one at once, or when an engine that sleeps looks around
constexpr int64_t kOverlookedNs = 500'000;     // so long a leader that is at work may not look at its ranks' notes
constexpr double kEndS = 10.0;  // a group that has failed waits so long for who uses an operation's memory
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

// A group that has failed, or a context that is shut down, ends the operations of the log, with an error, once nothing
// uses their memory any more. Until then who waits for one goes on waiting, but not for ever. since_ns: 0 at first.
bool Waiter::is_ending(const Operation& operation, int64_t& since_ns) const {
  if (!has_failed(parts_.control()) && !parts_.context.is_shut_down()) return false;
  if (since_ns == 0) since_ns = now_ns();
  if (static_cast<double>(now_ns() - since_ns) * 1e-9 > kEndS) {
    parts_.throw_if_failed(operation);
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
      if (is_ending(operation, over_ns)) return false;
      return blocked && parts_.negotiation.deadlock().is_withdrawn();
    }
    if (parts_.negotiation.requests().is_settled(operation.ticket)) return true;
    parts_.throw_if_failed(operation);
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
    if (shown.is_shown())
      parts_.context.presence().tell_wait(shown.number(), call_text(operation), missing_for_sure(operation));
    if (operation.ticket.tag == 0) return;
    if (!goes_on)
      deadlock_watch_.look_for_timeout(
          waiter, parts_.negotiation.requests().complete(operation.ticket) ? "" : waits_for(operation));
    deadlock_watch_.report_wait(operation, !goes_on, blocked);
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
  bool is_stuck = false;
  try {  // std::ref: a wait allocates nothing
    in_time = parts_.context.wait_loop().wait_until(
        std::ref(finished), parts_.has_work,
        timeout_s < 0 ? Deadline::never() : Deadline::after_s(std::max(timeout_s, 1e-9)), interrupt,
        parts_.ranks_outnumber_cores, std::ref(tick), std::ref(is_overlooked));
    is_stuck = std::exchange(blocked, false) && deadlock_watch_.unblock();
  } catch (const InternalError&) {  // of a look that knows of no operation
    if (blocked) deadlock_watch_.unblock();
    parts_.throw_if_failed(operation);
    throw;
  } catch (...) {
    if (blocked) deadlock_watch_.unblock();
    throw;
  }
  if (is_stuck) throw MismatchError(parts_.negotiation.deadlock().verdict().text + " " + parts_.from.where(operation));
  return in_time;
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
  if (operation.quick) parts_.throw_if_failed(operation);
  return false;
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
  if (!operation.name.empty()) parts_.submitted.lock()->pending.named().give_back(operation);
}

void Waiter::wait_until(const std::function<bool()>& done, Interrupt interrupt, const std::function<void()>& tick) {
  parts_.context.wait_loop().wait_until(done, parts_.has_work, Deadline::never(), interrupt,
                                        parts_.ranks_outnumber_cores, tick, [] { return true; });
}

}  // namespace rr
