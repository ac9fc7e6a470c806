// Where the members of a group are: which of them share a host with this rank, and who speaks for each host.
//
// A group on several hosts has one control segment on each of them, with request slots for all its ranks. Each host's
// leader, its member with the lowest rank, tells the other leaders what the members here announce and writes what it
// hears from them (relay/host_relay.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace rr {

struct Hosts {
  std::vector<int> of;                    // host of each group rank; hosts count from 0 by their lowest rank
  std::vector<std::vector<int>> members;  // group ranks of each host, ascending
  int mine = 0;

  Hosts() = default;
  // labels: by group rank, equal on the same host.
  Hosts(const std::vector<int>& labels, int rank) {
    std::vector<int> known;
    for (const int label : labels) {
      size_t at = 0;
      while (at < known.size() && known[at] != label) ++at;
      if (at == known.size()) {
        known.push_back(label);
        members.emplace_back();
      }
      members[at].push_back(static_cast<int>(of.size()));
      of.push_back(static_cast<int>(at));
    }
    mine = of[static_cast<size_t>(rank)];
  }

  // The same of some of the ranks only, this host's among them: a host without any is none of its hosts. `of` is empty.
  Hosts narrowed(const std::vector<int>& ranks) const {
    Hosts narrow;
    for (const auto& all : members) {
      std::vector<int> left;
      for (const int r : all) {
        if (std::find(ranks.begin(), ranks.end(), r) != ranks.end()) left.push_back(r);
      }
      if (left.empty()) continue;
      if (&all == &here()) narrow.mine = narrow.count();
      narrow.members.push_back(std::move(left));
    }
    return narrow;
  }

  int count() const { return static_cast<int>(members.size()); }
  bool several() const { return members.size() > 1; }
  bool is_here(int rank) const { return of[static_cast<size_t>(rank)] == mine; }
  const std::vector<int>& here() const { return members[static_cast<size_t>(mine)]; }
  size_t most_ranks() const {  // of a host
    size_t most = 0;
    for (const auto& all : members) most = std::max(most, all.size());
    return most;
  }
  int leader(int host) const { return members[static_cast<size_t>(host)].front(); }
  int leader_here() const { return leader(mine); }
  bool is_first() const { return mine == 0; }  // this host, whose log is the group's
};

}  // namespace rr
