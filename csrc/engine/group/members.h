// What a rank knows of the other members of its group: who has died, who has left, who shows no sign of life. How a
// member's end fails what needs it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "planner/resources.h"

namespace rr {

std::string list_of(const std::vector<int>& ranks);  // "1, 2, 5"
// A text about all ranks has room for so many of the ranks that each of them misses.
inline constexpr size_t kShownRanks = 4;
std::string some_of(std::vector<int> ranks);  // "1, 2, 5, 6 and 12 more"

class Members {
 public:
  // cause_of_death: by world rank; null for a rank that lives, as far as is known.
  // deadlock_text: Context::deadlock_text().
  Members(const Resources& from, std::function<const char*(int)> cause_of_death,
          std::function<std::string()> deadlock_text)
      : from_(from), cause_of_death_(std::move(cause_of_death)), deadlock_text_(std::move(deadlock_text)) {}

  // The rank whose leaving means that nothing more is heard of `rank`: its own, or that of a leader who would have
  // passed it on. -1: none.
  int unreachable_because_of(int rank) const;
  // World ranks that an operation waits for.
  std::vector<int> missing(const Operation& operation) const;
  // World ranks none of whose threads has looked around for so long: stopped, or in a machine that gives them no time.
  std::vector<int> unresponsive(double seconds) const;
  // The same; is_too_old: told when a thread last has.
  std::vector<int> unresponsive(const std::function<bool(int64_t seen_ns)>& is_too_old) const;
  // Whether a rank's process has ended, as far as is known.
  bool is_dead(int rank) const { return cause_of_death_(from_.world_ranks[static_cast<size_t>(rank)]) != nullptr; }
  // Why this rank cannot announce more, in words, where its leader has not passed on what it has announced.
  std::string leader_is_behind() const;
  // Throws when one of the ranks has left.
  void check(const std::vector<int>& ranks) const;

  // These fail the group; after a verdict that this rank's thread still has to raise, those that speak of leaving do
  // not.
  void fail_if_dead() const;
  // An operation that is not announced yet waits until the leader has read what was announced before: for ever, once
  // the leader has closed. True: it has.
  bool fail_if_unread(const Operation& waiting) const;
  // For one operation, which need not be in a table: a synchronous all-reduce from the request slots is not.
  void fail_if_left(const Operation& operation) const;
  // needing: the operation that misses the rank; null: not one alone.
  void fail_because_left(int rank, const Operation* needing) const;

 private:
  const char* cause_of(int rank) const;
  std::string left_text(int rank, const Operation* needing) const;

  const Resources& from_;
  std::function<const char*(int)> cause_of_death_;
  std::function<std::string()> deadlock_text_;
};

}  // namespace rr
