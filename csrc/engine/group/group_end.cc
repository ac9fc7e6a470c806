#include "engine/group/group_end.h"

#include <exception>
#include <unordered_map>

#include "base/errors.h"
#include "base/text.h"
#include "engine/context.h"

namespace rr {
namespace {

template <class Call>
std::exception_ptr raised_by(Call call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

bool GroupEnd::fail_pending() {
  if (counts_.operations.load(std::memory_order_relaxed) == 0 && !joining_.is_called()) return false;
  executor_.drop();
  {
    const auto submitted = parts_.submitted.lock();
    PendingOperations& pending = submitted->pending;
    // Ranks that differ in an operation are told that, also by one whose end has failed the group meanwhile.
    const std::unordered_map<uint64_t, OperationPtr> logged = pending.logged();
    for (const auto& [request_slot, operation] : logged) pending.settle(*operation);
    pending.fail_all([&](const Operation& operation) { return raised_by([&] { parts_.throw_if_failed(operation); }); });
  }
  parts_.negotiation.segment().ring_all();
  return true;
}

void GroupEnd::leave(const std::vector<GroupEnd*>& ends, const std::string& cause) {
  std::vector<GroupRelay*> relays;
  for (GroupEnd* end : ends) {
    write_text(end->parts_.control().cause(end->parts_.from.rank).text, cause);
    end->mark_left(Attendance::kShutDown);
    relays.push_back(&end->relay_);
  }
  GroupRelay::close(relays, Attendance::kShutDown);
  for (GroupEnd* end : ends) end->fail_as_shut_down();
}

void GroupEnd::remove() {
  executor_.close();
  {
    const auto submitted = parts_.submitted.lock();
    parts_.is_removed = true;
    const auto error = std::make_exception_ptr(
        ShutdownError(parts_.from.here() + "] the process set was removed while this operation was pending"));
    submitted->pending.fail_all([&error](const Operation&) { return error; });
    ring_own();
  }
  mark_left(Attendance::kRemoved);
  // Other hosts may not have heard yet that this one has agreed.
  GroupRelay::close({&relay_}, Attendance::kRemoved);
}

void GroupEnd::mark_left(Attendance how) const {
  const ControlSegment& control = parts_.control();
  const int rank = parts_.from.rank;
  {
    const auto submitted = parts_.submitted.lock();
    const PendingOperations& pending = submitted->pending;
    if (pending.logged().empty()) control.line(rank).cursor.store(kFinished, std::memory_order_release);
    for (int r = 0; r < control.size(); ++r) control.messages_sent(rank, r).store(pending.messages().sent(r));
  }
  control.line(rank).attendance.store(how, std::memory_order_release);
}

void GroupEnd::fail_as_shut_down() {
  // Its full fence: whoever reads what is written to registered memory from here on sees that this rank has left.
  parts_.negotiation.segment().ring_all();
  executor_.close();
  const auto submitted = parts_.submitted.lock();
  const std::exception_ptr error = raised_by([&] { parts_.context.throw_if_shut_down(); });
  submitted->pending.fail_all([&error](const Operation&) { return error; });
  ring_own();
}

// This rank's threads that wait.
void GroupEnd::ring_own() const { ring(*parts_.from.bells[static_cast<size_t>(parts_.from.rank)]); }

}  // namespace rr
