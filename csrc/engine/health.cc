// Group: what is checked a few times a second while somebody waits, and by the engine: peers that died or left,
// operations that take too long.

#include <algorithm>
#include <cstdio>
#include <new>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {
namespace {

constexpr double kUnresponsiveS = 0.75;  // three times the engine's pause between two looks around

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 10 ? "%.1f" : "%.0f", seconds);
  return text;
}

}  // namespace

// The limit and where it comes from.
std::string Group::limit_text(double timeout_s) const {
  return (context_.has_own_timeout() ? "the group's timeout of " : "RINGREDUCE_TIMEOUT=") + seconds_text(timeout_s) +
         " s";
}

// A rank that left cleanly is missed only by the operations that still need it. cut_off: by rank, what
// Members::unreachable_because_of() says.
void Group::fail_if_needed_rank_left(const PendingOperations& pending, const std::vector<int>& cut_off) {
  for (int r = 0; r < size(); ++r) {
    const int by = cut_off[static_cast<size_t>(r)];
    if (by < 0 || r == rank_) continue;
    const OperationPtr needing = pending.waiting_for(r);
    const bool is_missed =
        executor_.needs(r) || pending.messages().waits_for(r, control_.messages_sent(r, rank_).load());
    const bool stuck = (by == r && is_missed) || control_.line(rank_).joined.load() != 0;
    if (needing != nullptr || stuck) return members_.fail_because_left(by, needing.get());
  }
}

// Executor lock held. What this rank has announced has no place in the log if the first host's leader gave it none.
void Group::fail_if_out_of_order(const PendingOperations& pending) {
  if (relay_ == nullptr || hosts_.mine == 0) return;
  const int first = hosts_.leader(0);
  if (!has_closed(control_.line(first)) || relay_->has_ordered_entries()) return;
  for (const auto& [request_slot, operation] : pending.logged()) {
    const Ticket ticket = operation->ticket;
    if (!negotiation_.is_decided(ticket)) return members_.fail_because_left(first, operation.get());
  }
}

void Group::check_age(Operation& operation, int64_t now) {
  const Settings& settings = context_.settings();
  const double age_s = static_cast<double>(now - operation.submitted_ns) * 1e-9;
  const double timeout_s = context_.timeout_s();
  if (timeout_s > 0 && age_s > timeout_s) {
    const std::string absent = list_of(members_.missing(operation));
    const std::string unresponsive_ranks = list_of(members_.unresponsive(kUnresponsiveS));
    record_failure(control_, FatalKind::kTimeout,
                   where(operation) + " did not finish within " + limit_text(timeout_s) + "; " +
                       (operation.peer == kAnyPeer ? "no rank has sent a message for it"
                        : !absent.empty()          ? "missing rank(s): " + absent
                        : !unresponsive_ranks.empty()
                            ? "every rank has submitted it, but rank(s) " + unresponsive_ranks + " show no sign of life"
                            : "every rank has submitted it, so one of them is stuck in it"));
  }
  if (settings.stall_warning_s > 0 && age_s > settings.stall_warning_s && !operation.warned.exchange(true)) {
    std::vector<int> absent = members_.missing(operation);
    const bool submitted = absent.empty();
    if (submitted) absent = members_.unresponsive(kUnresponsiveS);
    context_.log().warning(where(operation) + " has been waiting for " + seconds_text(age_s) + " s" +
                           (absent.empty() ? "" : " for rank(s) " + list_of(absent)) +
                           (submitted ? "; every rank has submitted it" : "; the other ranks have submitted it"));
  }
}

// For a thread that waits for the shared lock, whose holder may have died or be stopped: no operation has an age then.
void Group::look_at_lock_holders() {
  throw_if_failed();
  // Others wait for the lock too, and this rank's other threads wait for this one: it must not be taken for the holder.
  control_.line(rank_).seen_ns.store(now_ns(), std::memory_order_relaxed);
  context_.watch_peers();
  members_.fail_if_dead();
  fail_if_unresponsive();
  throw_if_failed();
}

void Group::fail_if_unresponsive() {
  const double timeout_s = context_.timeout_s();
  if (timeout_s <= 0) return;
  const std::string unresponsive_ranks = list_of(members_.unresponsive(timeout_s));
  if (unresponsive_ranks.empty()) return;
  record_failure(control_, FatalKind::kTimeout,
                 here() + "] rank(s) " + unresponsive_ranks + " showed no sign of life for " + limit_text(timeout_s));
}

// What is not one operation's fault ends the group; every rank hears of it.
void Group::fail_group(const std::exception& error) {
  const std::string what = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
  const bool says_where = what.rfind("[ringreduce", 0) == 0;
  record_failure(control_, kind_of(error), says_where ? what : here() + "] " + what);
}

// Executor lock held.
void Group::housekeep() {
  try {
    look_around();
  } catch (const std::exception& error) {
    fail_group(error);
  }
}

void Group::look_around() {
  control_.line(rank_).seen_ns.store(now_ns(), std::memory_order_relaxed);
  if (relay_ != nullptr) relay_->look_for_deadlock();
  relay();
  if (has_failed(control_)) return;
  members_.fail_if_dead();
  std::vector<int> cut_off;
  for (int r = 0; r < size(); ++r) cut_off.push_back(members_.unreachable_because_of(r));
  // Messages that a rank sent before it left are still in its link.
  const bool has_anyone_left = std::any_of(cut_off.begin(), cut_off.end(), [](int by) { return by >= 0; });
  while (has_anyone_left && deliver_messages()) continue;
  const Locked submitted = submitted_.lock();
  PendingOperations& pending = submitted->pending;
  fail_if_needed_rank_left(pending, cut_off);
  fail_if_out_of_order(pending);
  const int64_t now = now_ns();
  for (const OperationPtr& operation : pending.oldest_first()) {
    if (operation->quick) {
      if (!pending.try_finish_quick(*operation)) check_age(*operation, now);
      continue;
    }
    pending.settle(*operation);
    if (operation->state != State::kPending) continue;
    check_age(*operation, now);
    // Whoever completed it found the log full, and may have left since.
    const bool is_decided = negotiation_.is_decided(operation->ticket);
    if (!is_decided && negotiation_.complete(operation->ticket)) executor_.retry_append();
  }
  pending.give_back_dropped_names();
}

}  // namespace rr
