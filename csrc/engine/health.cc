// Group: what is checked a few times a second while somebody waits, and by the engine: peers that died or left,
// operations that take too long.

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

void Group::fail_if_peers_died() {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || !context_.is_dead(world_ranks_[static_cast<size_t>(r)])) continue;
    if (board_.line(r).attendance.load() == static_cast<uint32_t>(Attendance::kShutDown)) continue;
    record_failure(board_, FatalKind::kPeerLost,
                   "[ringreduce rank " + std::to_string(rank_) + "/" + std::to_string(size()) + " on " +
                       context_.hostname() + "] lost rank " + std::to_string(r) +
                       " (shm): its process has ended without shutdown(); see that rank's output for the reason");
    return;
  }
}

// A rank that left cleanly is missed only by the operations that still need it.
void Group::fail_if_needed_rank_left() {
  for (int r = 0; r < size(); ++r) {
    if (board_.line(r).attendance.load() != static_cast<uint32_t>(Attendance::kShutDown) || r == rank_) continue;
    const Operation* needing = nullptr;
    const auto needs = [&](const OperationPtr& operation) {
      if (operation == nullptr || operation->state != State::kPending) return;
      const auto missing = ledger_.missing(operation->ticket);
      if (std::find(missing.begin(), missing.end(), r) != missing.end()) needing = operation.get();
    };
    for (const auto& operation : outstanding_) needs(operation);
    for (const auto& [name, operation] : by_name_) needs(operation);
    const bool stuck = (active_ != nullptr && active_->needs(r)) || point_to_point_.waits_for(r) ||
                       board_.line(rank_).joined.load() != 0;
    if (needing != nullptr || stuck) return fail_because_left(r, needing);
  }
}

// The same for one operation; a synchronous all-reduce from the cells stands in no table.
void Group::fail_if_left(const Operation& operation) {
  for (const int r : ledger_.missing(operation.ticket)) {
    if (board_.line(r).attendance.load() == static_cast<uint32_t>(Attendance::kShutDown)) {
      return fail_because_left(r, &operation);
    }
  }
}

void Group::fail_because_left(int rank, const Operation* needing) {
  record_failure(board_, FatalKind::kShutdown,
                 std::string("Horovod has been shut down. This was caused by an exception on one of the ranks or an "
                             "attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished "
                             "execution. (rank ") +
                     std::to_string(rank) + " called shutdown() or ended; " +
                     (needing != nullptr ? where(*needing) : "[ringreduce rank " + std::to_string(rank_) + "]") + ")");
}

void Group::check_age(Operation& operation, int64_t now) {
  const Settings& settings = context_.settings();
  const double age_s = static_cast<double>(now - operation.submitted_ns) * 1e-9;
  if (settings.timeout_s > 0 && age_s > settings.timeout_s) {
    const std::string missing = list_of(ledger_.missing(operation.ticket));
    record_failure(board_, FatalKind::kTimeout,
                   where(operation) +
                       " did not finish within RINGREDUCE_TIMEOUT=" + std::to_string(settings.timeout_s) + " s; " +
                       (missing.empty() ? "every rank has submitted it, so one of them is stuck in it"
                                        : "missing rank(s): " + missing));
  }
  if (settings.stall_warning_s > 0 && age_s > settings.stall_warning_s && !operation.warned.exchange(true)) {
    context_.log().warning(where(operation) + " has been waiting for " + std::to_string(static_cast<int>(age_s)) +
                           " s for rank(s) " + list_of(ledger_.missing(operation.ticket)) +
                           "; the other ranks have submitted it");
  }
}

// Executor lock held.
void Group::housekeep() {
  if (has_failed(board_)) return;
  fail_if_peers_died();
  const std::lock_guard lock(mutex_);
  fail_if_needed_rank_left();
  const int64_t now = now_ns();
  for (const auto& operation : outstanding_) {
    if (operation != nullptr && operation->quick && operation->state == State::kPending) try_finish_quick(*operation);
  }
  std::vector<OperationPtr> logged;
  for (const auto& [cell, operation] : logged_) logged.push_back(operation);
  for (const OperationPtr& operation : logged) {
    settle(*operation);
    if (operation->state == State::kPending) check_age(*operation, now);
  }
  for (auto named = by_name_.begin(); named != by_name_.end();) {
    Operation& operation = *named->second;
    if (operation.quick && operation.state == State::kPending) try_finish_quick(operation);
    const bool dropped = operation.state != State::kPending && named->second.use_count() == 1;
    named = dropped ? by_name_.erase(named) : std::next(named);
  }
}

}  // namespace rr
