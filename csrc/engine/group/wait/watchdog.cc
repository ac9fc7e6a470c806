#include "engine/group/wait/watchdog.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "engine/context.h"
#include "negotiation/segment/failure.h"

namespace rr {
namespace {
constexpr int64_t kGraceNs = 5'000'000'000;  // so long what a member has said before it left the world may take
// Past the timeout who sees no stopped rank waits so long for a host that may: its operation began at another time.
constexpr double kOthersTellS = 2.0;
constexpr int64_t kLookNs = 500'000'000;  // a rank that was stopped for longer between two looks has read nothing then

// On the first of several hosts: whether this rank is at an entry of which its leader has not told the others.
bool is_at_untold(const ControlSegment& control, int rank) {
  const uint64_t position = control.line(rank).cursor.load(std::memory_order_acquire);
  return control.entry(position).seq.load(std::memory_order_acquire) == position + 1 &&
         control.header().log_sent.load(std::memory_order_acquire) <= position;
}
}  // namespace

// A rank that left cleanly is missed only by the operations that still need it. cut_off: by rank, what
// Members::unreachable_because_of() says.
void Watchdog::fail_if_needed_rank_left(const PendingOperations& pending, const std::vector<int>& cut_off) const {
  for (int r = 0; r < parts_.from.size(); ++r) {
    const int by = cut_off[static_cast<size_t>(r)];
    if (by < 0 || r == parts_.from.rank) continue;
    const OperationPtr needing = pending.waiting_for(r);
    const bool is_missed = executor_.needs(r) ||
                           pending.messages().waits_for(r, parts_.control().messages_sent(r, parts_.from.rank).load());
    // An end of a join is there for all before a join() returns. Who has left within one will never take its part in
    // what the others do meanwhile.
    const bool has_left_joined = by == r && parts_.control().line(r).joined.load() != 0;
    const bool stuck =
        (by == r && is_missed) || has_left_joined || parts_.control().line(parts_.from.rank).joined.load() != 0;
    if (needing != nullptr || stuck) return parts_.members.fail_because_left(by, needing.get());
    if (by == r) fail_if_cut(pending, r);
  }
}

// `rank` has left after it had sent what this one needs of it. A connection that breaks may lose that.
void Watchdog::fail_if_cut(const PendingOperations& pending, int rank) const {
  std::string why = executor_.why_cut(rank);
  if (why.empty())
    why = pending.messages().why_cut(rank, parts_.control().messages_sent(rank, parts_.from.rank).load());
  if (why.empty()) return;
  record_failure(parts_.control(), FatalKind::kPeerLost,
                 parts_.from.here() + "] " + kLostRank +
                     std::to_string(parts_.from.world_ranks[static_cast<size_t>(rank)]) +
                     ": it called shutdown() or ended, and what it had sent before did not all come: " + why);
}

// A receive from any rank, when all have left, and all that they sent is here.
void Watchdog::fail_if_nobody_can_send(const PendingOperations& pending, const std::vector<int>& cut_off) const {
  const OperationPtr receive = pending.messages().from_anyone();
  int last = -1;
  for (int r = 0; r < parts_.from.size() && receive != nullptr; ++r) {
    if (r == parts_.from.rank) continue;
    const uint64_t sent = parts_.control().messages_sent(r, parts_.from.rank).load();
    if (cut_off[static_cast<size_t>(r)] != r || !pending.messages().has_all(r, sent)) return;
    last = r;
  }
  if (last >= 0) parts_.members.fail_because_left(last, receive.get());
}

// Executor lock held. The first host's leader tells the others what is in the log, and this host's leader brings it
// into the log here. What they had not done when they closed, nobody does.
void Watchdog::fail_if_out_of_order(const PendingOperations& pending) const {
  const Hosts& hosts = parts_.from.hosts;
  if (!hosts.several() || (relay_.exists() && hosts.is_first())) return;
  const int by = relay_.exists() ? hosts.leader(0) : hosts.leader_here();
  if (!has_closed(parts_.control().line(by)) || (relay_.exists() && relay_.host()->has_ordered_entries())) return;
  for (const auto& [request_slot, operation] : pending.logged()) {
    const bool is_undecided = !parts_.negotiation.requests().is_decided(operation->ticket);
    if (!operation->discard && (hosts.is_first() ? is_at_untold(parts_.control(), parts_.from.rank) : is_undecided))
      return parts_.members.fail_because_left(by, operation.get());
  }
}

void Watchdog::check_age(Operation& operation, int64_t now) const {
  const double age_s = parts_.context.wait_loop().running().ran_s(operation.submitted_ns, now);
  const double timeout_s = parts_.context.timeout_s();
  late_.look(operation, age_s);
  if (timeout_s <= 0 || age_s <= timeout_s) return;
  const std::optional<std::string> why = why_late(operation, age_s > timeout_s + kOthersTellS);
  if (!why) return;
  record_failure(parts_.control(), FatalKind::kTimeout,
                 parts_.from.where(operation) + " did not finish within " + parts_.context.timeout_text() + "; " +
                     *why + late_.where_they_stand(operation));
}

// Who is to blame, as far as this rank can tell. None: a rank of another host may know, and tell, until is_final.
std::optional<std::string> Watchdog::why_late(const Operation& operation, bool is_final) const {
  if (operation.peer == kAnyPeer) return "no rank has sent a message for it";
  const std::string absent = list_of(parts_.members.missing(operation));
  if (!absent.empty()) return "missing rank(s): " + absent;
  const std::string all_have = "every rank has submitted it, ";
  const std::string unresponsive_ranks = list_of(parts_.members.unresponsive(kUnresponsiveS));
  if (!unresponsive_ranks.empty()) return all_have + "but rank(s) " + unresponsive_ranks + " show no sign of life";
  if (parts_.from.hosts.several() && !is_final) return std::nullopt;
  const std::string silent = list_of(late_.silent_leaders());
  if (!silent.empty()) return all_have + "but rank(s) " + silent + " of other hosts do not answer";
  return all_have + "so one of them is stuck in it";
}

void Watchdog::check_unsubmitted(Operation& waiting, const std::string& why) const {
  const double age_s = parts_.context.wait_loop().running().ran_s(waiting.submitted_ns, now_ns());
  const double warning_s = parts_.from.settings.stall_warning_s;
  if (warning_s > 0 && age_s >= warning_s && !waiting.warned.exchange(true))
    parts_.from.log.warning(parts_.from.where(waiting) + " waits because " + why);
  const double timeout_s = parts_.context.timeout_s();
  if (timeout_s <= 0 || age_s <= timeout_s) return;
  const std::string unresponsive_ranks = list_of(parts_.members.unresponsive(kUnresponsiveS));
  record_failure(parts_.control(), FatalKind::kTimeout,
                 parts_.from.where(waiting) + " did not finish within " + parts_.context.timeout_text() +
                     "; it could not be submitted, because " + why +
                     (unresponsive_ranks.empty() ? "" : "; rank(s) " + unresponsive_ranks + " show no sign of life"));
}

void Watchdog::check_window(Operation& waiting, bool eager) const {
  const auto submitted = parts_.submitted.lock();
  const UnnamedWindow& unnamed = submitted->pending.unnamed();
  if (parts_.members.fail_if_unread(waiting)) return;
  for (int r = 0; r < parts_.from.size(); ++r) {
    const int by = parts_.members.unreachable_because_of(r);
    if (by >= 0 && parts_.control().line(r).watermark.load() < unnamed.next())
      return parts_.members.fail_because_left(by, &waiting);
  }
  const OperationPtr oldest = unnamed.oldest();
  if (oldest != nullptr) return check_age(*oldest);
  std::vector<int> behind = unnamed.behind(eager);
  for (int& r : behind) r = parts_.from.world_ranks[static_cast<size_t>(r)];
  check_unsubmitted(waiting, behind.empty() ? parts_.members.leader_is_behind()
                                            : "rank(s) " + list_of(behind) + " have not ended the operation " +
                                                  std::to_string(eager ? kEagerCount : kUnnamedSlots) + " before it");
}

void Watchdog::look_at_lock_holders() const {
  parts_.throw_if_failed();
  // Others wait for the lock too, and this rank's other threads wait for this one: it must not be taken for the holder.
  parts_.control().line(parts_.from.rank).seen_ns.store(now_ns(), std::memory_order_relaxed);
  parts_.context.peers().look();
  parts_.members.fail_if_dead();
  fail_if_unresponsive();
  parts_.throw_if_failed();
}

void Watchdog::fail_if_unresponsive() const {
  const double timeout_s = parts_.context.timeout_s();
  if (timeout_s <= 0) return;
  // Ranks that were stopped together with this one have shown no sign of life either: that time does not count.
  const auto is_too_old = [&, now = now_ns()](int64_t seen_ns) {
    return parts_.context.wait_loop().running().ran_s(seen_ns, now) > std::max(timeout_s, kUnresponsiveS);
  };
  const std::string unresponsive_ranks = list_of(parts_.members.unresponsive(is_too_old));
  if (unresponsive_ranks.empty()) return;
  record_failure(parts_.control(), FatalKind::kTimeout,
                 parts_.from.here() + "] rank(s) " + unresponsive_ranks + " showed no sign of life for " +
                     parts_.context.timeout_text());
}

// A member may never have had this group: one that sees a rank die while it adds a process set raises, and tells the
// world alone, while the process set is there for ranks of other hosts.
void Watchdog::fail_with_world() const {
  if (parts_.from.id == 0) return;
  const ControlSegment& world = parts_.context.world().control();
  if (!has_failed(world)) return;
  const std::vector<int>& members = parts_.from.world_ranks;
  const bool has_any_left = std::any_of(members.begin(), members.end(), [&](int r) { return has_left(world.line(r)); });
  if (has_any_left) record_failure(parts_.control(), failure_kind(world), failure_text(world));
}

// A member that could not make this group, and left, does not say that it leaves it. One that had the group says so
// before it leaves the world; between hosts that may come later, over another connection, which the leader reads.
void Watchdog::mark_left_with_world() {
  if (parts_.from.id == 0) return;
  const int64_t now = now_ns();
  const int64_t passed_ns = std::min(now - std::exchange(marked_ns_, now), kLookNs);
  left_world_ns_.resize(static_cast<size_t>(parts_.from.size()));
  for (int r = 0; r < parts_.from.size(); ++r) {
    const bool can_tell = parts_.from.hosts.is_here(r) || parts_.from.hosts.leader_here() == parts_.from.rank;
    const int world_rank = parts_.from.world_ranks[static_cast<size_t>(r)];
    if (!can_tell || !has_left(parts_.context.world().control().line(world_rank))) continue;
    int64_t& lasts_ns = left_world_ns_[static_cast<size_t>(r)];
    lasts_ns += passed_ns;
    Attendance present = Attendance::kPresent;
    if (lasts_ns > kGraceNs)
      parts_.control().line(r).attendance.compare_exchange_strong(present, Attendance::kShutDown);
  }
}

void Watchdog::check(Operation& operation) const {
  check_age(operation);
  fail_with_world();
  parts_.members.fail_if_left(operation);
  fail_if_other_memory(operation);
}

void Watchdog::look() {
  parts_.members.fail_if_dead();
  fail_with_world();
  mark_left_with_world();
  std::vector<int> cut_off;
  for (int r = 0; r < parts_.from.size(); ++r) cut_off.push_back(parts_.members.unreachable_because_of(r));
  // Messages that a rank sent before it left are still in its link.
  const bool has_anyone_left = std::any_of(cut_off.begin(), cut_off.end(), [](int by) { return by >= 0; });
  while (has_anyone_left && executor_.deliver_messages()) continue;
  const auto submitted = parts_.submitted.lock();
  PendingOperations& pending = submitted->pending;
  // Of a join() that is under way, or was interrupted.
  const bool has_joined = parts_.control().line(parts_.from.rank).joined.load(std::memory_order_acquire) != 0;
  if (has_joined) pending.withdraw_if_void();
  fail_if_needed_rank_left(pending, cut_off);
  fail_if_nobody_can_send(pending, cut_off);
  fail_if_out_of_order(pending);
  const int64_t now = now_ns();
  for (const OperationPtr& operation : pending.oldest_first()) {
    if (operation->quick) {
      if (!pending.try_finish_quick(*operation)) check_age(*operation, now);
      continue;
    }
    pending.settle(*operation);
    if (operation->state != State::kPending || operation->discard) continue;
    check_age(*operation, now);
    // Whoever completed it found the log full, and may have left since.
    const bool is_decided = parts_.negotiation.requests().is_decided(operation->ticket);
    if (!is_decided && parts_.negotiation.requests().complete(operation->ticket)) executor_.retry_append();
  }
  pending.named().give_back_dropped();
}

}  // namespace rr
