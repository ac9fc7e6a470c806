// What a late rank of this host does meanwhile: how much of a core its process uses, and how long it waits for one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/late/late_ranks.h"
#include "os/process_state.h"

namespace rr {

class Group;
class PeerWatch;

class LateActivity {
 public:
  LateActivity(const Group& world, PeerWatch& peers);

  int pid_of(int rank);  // 0: not known yet
  // Looks at the ranks of this host among them. True: one is late that was not late in this operation before, so a
  // second look tells what it did in between.
  bool look(const std::vector<LateRanks::Late>& late);
  std::string text(int rank) const;  // "it was on CPU meanwhile (98 % of a core)"

 private:
  // What the rank did between two looks within one operation.
  struct Doing {
    uint64_t operation = 0;
    int64_t looked_ns = 0;
    ProcessTimes times;
    int64_t looked_for_ns = 0;  // lately, and what was counted in it
    ProcessTimes sums;
  };

  const Group& world_;
  PeerWatch& peers_;
  std::vector<Doing> doing_;  // by world rank
  std::vector<int> pids_;     // by world rank; 0: not asked yet
};

}  // namespace rr
