// Group: how a rank leaves it.

#include <algorithm>

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {
namespace {

constexpr double kPassOnS = 1.0;  // a leader that leaves waits so long for those of other hosts
constexpr double kFlushS = 0.1;   // they have so long to take what it says last

}  // namespace

// Executor lock held, the engine is gone.
void Group::leave(const std::vector<Group*>& groups, const std::string& cause) {
  for (Group* group : groups) {
    write_text(group->control_.cause(group->rank_).text, cause);
    group->mark_left(Attendance::kShutDown);
  }
  close_relays(groups, Attendance::kShutDown);
  for (Group* group : groups) group->fail_as_shut_down();
}

void Group::end() {
  executor_.close();
  {
    const Locked submitted = submitted_.lock();
    is_removed_ = true;
    submitted->pending.fail_all(std::make_exception_ptr(
        ShutdownError(here() + "] the process set was removed while this operation was pending")));
    ring(*bells_.wait[static_cast<size_t>(rank_)]);
  }
  mark_left(Attendance::kRemoved);
  // Other hosts may not have heard yet that this one has agreed.
  close_relays({this}, Attendance::kRemoved);
}

void Group::mark_left(Attendance how) {
  {
    const Locked submitted = submitted_.lock();
    const PendingOperations& pending = submitted->pending;
    if (pending.logged().empty()) control_.line(rank_).cursor.store(kFinished, std::memory_order_release);
    for (int r = 0; r < size(); ++r) control_.messages_sent(rank_, r).store(pending.messages().sent(r));
  }
  control_.line(rank_).attendance.store(how, std::memory_order_release);
}

// All groups together: a leader waits once, however many it leaves. MPI_Finalize may hang where messages are left that
// nobody has taken (MPICH 4.0.2).
void Group::close_relays(const std::vector<Group*>& groups, Attendance how) {
  const auto repeat = [&](double limit_s, const auto& step) {
    std::vector<Group*> left = groups;
    const Deadline deadline = Deadline::after_s(limit_s);
    do {
      left.erase(std::remove_if(left.begin(), left.end(), [&](Group* group) { return group->relay_last(how, step); }),
                 left.end());
      if (!left.empty()) relax(true);
    } while (!left.empty() && !deadline.passed());
  };
  const bool everybody = how == Attendance::kRemoved;
  repeat(kPassOnS, [&](HostRelay& relay) { return relay.pass_on(everybody); });
  if (everybody) return;
  const auto send_close = [](HostRelay& relay) {
    relay.send_close();
    return true;
  };
  for (Group* group : groups) group->relay_last(how, send_close);
  repeat(kFlushS, [](HostRelay& relay) { return relay.flush(); });
}

// Says what step says of the relay; true without one.
bool Group::relay_last(Attendance how, const std::function<bool(HostRelay&)>& step) {
  try {
    return relay_ == nullptr || step(*relay_);
  } catch (const Error& error) {
    // The links are broken: nothing more can be said to the others. A lost peer is an ordinary event, and nobody who
    // leaves misses it; any other error is a fault that no call will raise.
    if (code_of(error) != ErrorCode::kPeerLostError)
      context_.log().warning(here() + "] while leaving: " + error.what());
    relay_.reset();
    if (how == Attendance::kShutDown) {
      control_.line(rank_).attendance.store(Attendance::kClosed, std::memory_order_release);
    }
    return true;
  }
}

void Group::fail_as_shut_down() {
  // Its full fence: whoever reads what is written to registered memory from here on sees that this rank has left.
  negotiation_.ring_all();
  executor_.close();
  const Locked submitted = submitted_.lock();
  std::exception_ptr error;
  try {
    context_.throw_if_shut_down();
  } catch (...) {
    error = std::current_exception();
  }
  submitted->pending.fail_all(error);
}

}  // namespace rr
