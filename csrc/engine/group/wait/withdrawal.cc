#include "engine/group/wait/withdrawal.h"

#include <string>
#include <vector>

#include "base/poll.h"
#include "base/text.h"
#include "engine/context.h"

namespace rr {
namespace {
// What all ranks are in when its call is interrupted has so long to end.
constexpr double kFinishS = 10.0;
}  // namespace

// True where nothing will read or write the operation's memory any more.
bool Withdrawal::try_withdraw(Operation& operation) const {
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

bool Withdrawal::is_under_way(const Operation& operation) const {
  if (operation.ticket.tag == 0) return true;  // its message has begun to arrive
  const Requests& requests = parts_.negotiation.requests();
  return requests.is_decided(operation.ticket) || requests.complete(operation.ticket);
}

void Withdrawal::finish_complete(Interrupt interrupt) {
  std::vector<OperationPtr> complete;
  {
    const auto submitted = parts_.submitted.lock();
    submitted->pending.push_unnamed();
    submitted->pending.push_named();
    for (const auto& [request_slot, operation] : submitted->pending.logged()) {
      if (is_under_way(*operation)) complete.push_back(operation);
    }
  }
  for (const OperationPtr& operation : complete) {
    operation->wanted.store(true, std::memory_order_relaxed);
    waiter_.wait_until_finished(*operation, -1, interrupt);
  }
}

void Withdrawal::fail_as_interrupted(const std::string& operation, const std::string& cause) const {
  record_failure(parts_.control(), FatalKind::kMismatch,
                 operation + ": an exception, such as KeyboardInterrupt, ended this rank's call, and " + cause);
}

void Withdrawal::withdraw(Operation& operation, Interrupt interrupt) {
  const auto is_pending = [&] { return operation.state.load(std::memory_order_acquire) == State::kPending; };
  const auto fail = [&](const std::string& cause) {  // a rank that is shut down leaves, which is for its peers to see
    if (is_pending() && !parts_.context.is_shut_down()) fail_as_interrupted(parts_.from.where(operation), cause);
  };
  try {
    if (try_withdraw(operation)) return;
    const bool is_finishable = is_under_way(operation);
    if (is_finishable) waiter_.wait(operation, kFinishS, interrupt);
    fail(is_finishable ? "it did not finish within " + seconds_text(kFinishS) + " s more"
                       : "what other hosts may have been told of cannot be withdrawn");
  } catch (...) {  // its own error, that of the group, or that a second signal has come
    fail("another one ended the wait for its end");
  }
  // Whoever executes the log sees the failure between two steps, and lets go.
  const auto is_let_go = [&] {
    if (is_pending() && !parts_.context.is_shut_down()) parts_.context.try_progress();
    return !is_pending();
  };
  poll_until(is_let_go, Deadline::after_s(kFinishS));
}

}  // namespace rr
