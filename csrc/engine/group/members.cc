#include "engine/group/members.h"

#include <algorithm>

#include "base/clock.h"
#include "base/errors.h"
#include "negotiation/segment/failure.h"

namespace rr {

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

std::string some_of(std::vector<int> ranks) {
  if (ranks.size() <= kShownRanks) return list_of(ranks);
  const std::string others = std::to_string(ranks.size() - kShownRanks);
  ranks.resize(kShownRanks);
  return list_of(ranks) + " and " + others + " more";
}

void Members::fail_if_dead() const {
  for (int r = 0; r < from_.size(); ++r) {
    const char* const why = r == from_.rank ? nullptr : cause_of_death_(from_.world_ranks[static_cast<size_t>(r)]);
    if (why == nullptr) continue;
    if (RankLine& line = from_.control.line(r); has_left(line)) {
      if (from_.hosts.several() && r == from_.hosts.leader_here()) mark_closed(line);
      continue;
    }
    record_failure(
        from_.control, FatalKind::kPeerLost,
        from_.here() + "] " + kLostRank + std::to_string(from_.world_ranks[static_cast<size_t>(r)]) + ": " + why);
    return;
  }
}

int Members::unreachable_because_of(int rank) const {
  if (has_left(from_.control.line(rank))) return rank;
  if (!from_.hosts.several() || from_.hosts.is_here(rank)) return -1;
  for (const int leader : {from_.hosts.leader(from_.hosts.of[static_cast<size_t>(rank)]), from_.hosts.leader_here()}) {
    if (has_closed(from_.control.line(leader))) return leader;
  }
  return -1;
}

void Members::check(const std::vector<int>& ranks) const {
  for (const int r : ranks) {
    const int by = r == from_.rank ? -1 : unreachable_because_of(r);
    if (by < 0) continue;
    if (const std::string text = deadlock_text_(); !text.empty()) throw MismatchError(text);
    if (const char* const cause = cause_of(by); cause != nullptr)
      throw PeerLostError(told_at(from_.here() + "]", FatalKind::kPeerLost, cause));
    throw ShutdownError(left_text(by, nullptr));
  }
}

std::string Members::leader_is_behind() const {
  const int leader = from_.world_ranks[static_cast<size_t>(from_.hosts.leader_here())];
  return "rank " + std::to_string(leader) + ", the leader of this host, has not told the other hosts what came before";
}

bool Members::fail_if_unread(const Operation& waiting) const {
  const int leader = from_.hosts.leader_here();
  if (!has_closed(from_.control.line(leader))) return false;
  fail_because_left(leader, &waiting);
  return true;
}

void Members::fail_if_left(const Operation& operation) const {
  for (int r = 0; r < from_.size(); ++r) {
    // In this order: what a rank has announced, it announced before it left.
    const int by = unreachable_because_of(r);
    if (by < 0 || r == from_.rank) continue;
    const auto missing = from_.negotiation.requests().missing(operation.ticket);
    if (std::find(missing.begin(), missing.end(), r) != missing.end()) return fail_because_left(by, &operation);
  }
}

void Members::fail_because_left(int rank, const Operation* needing) const {
  // By a verdict, which this rank's thread will raise; the other one has, and left.
  if (from_.negotiation.deadlock().is_withdrawn()) return;
  // The world fails first: a rank that waits in it may raise that, and leave, before the other groups have failed.
  if (const std::string text = deadlock_text_(); !text.empty()) {
    record_failure(from_.control, FatalKind::kMismatch, text);
  } else if (const char* const cause = cause_of(rank); cause != nullptr) {
    record_failure(from_.control, FatalKind::kPeerLost, cause);
  } else {
    record_failure(from_.control, FatalKind::kShutdown, left_text(rank, needing));
  }
}

// Of a rank that is seen to have left. null: it has not said why.
const char* Members::cause_of(int rank) const {
  const char* const cause = from_.control.cause(rank).text;
  return cause[0] != '\0' ? cause : nullptr;
}

std::string Members::left_text(int rank, const Operation* needing) const {
  return "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
         "allgather or broadcast a tensor after one of the ranks finished execution. (rank " +
         std::to_string(from_.world_ranks[static_cast<size_t>(rank)]) + " called shutdown() or ended; " +
         (needing != nullptr ? from_.where(*needing) : from_.here() + "]") + ")";
}

std::vector<int> Members::missing(const Operation& operation) const {
  if (operation.peer == kAnyPeer) return {};
  std::vector<int> ranks =
      operation.peer >= 0 ? std::vector<int>{operation.peer} : from_.negotiation.requests().missing(operation.ticket);
  for (int& r : ranks) r = from_.world_ranks[static_cast<size_t>(r)];
  return ranks;
}

std::vector<int> Members::unresponsive(double seconds) const {
  const int64_t since = now_ns() - static_cast<int64_t>(seconds * 1e9);
  return unresponsive([since](int64_t seen_ns) { return seen_ns < since; });
}

std::vector<int> Members::unresponsive(const std::function<bool(int64_t)>& is_too_old) const {
  std::vector<int> ranks;
  for (int r = 0; r < from_.size(); ++r) {
    if (r != from_.rank && from_.hosts.is_here(r) &&
        is_too_old(from_.control.line(r).seen_ns.load(std::memory_order_relaxed))) {
      ranks.push_back(from_.world_ranks[static_cast<size_t>(r)]);
    }
  }
  return ranks;
}

}  // namespace rr
