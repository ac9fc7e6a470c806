// All-reduce over hosts, on two levels: the ranks of a host reduce-scatter through their staging area, each slice is
// reduced over one rank a host, and the slices are gathered again, as a pipeline of pieces. Each byte crosses the
// network 2(h-1)/h times, and as many ranks of a host take part as every host has.
//
// Source of the two levels with several leaders: Bayatpour, Chakraborty, Subramoni, Lu and Panda, "Scalable reduction
// collectives with data partitioning-based multi-leader design", SC 2017.
#pragma once

#include <memory>
#include <vector>

#include "planner/two_level.h"

namespace rr {

// Of one entry of the log. hosts: where the members of the team are. rounds: of the stage, counted as algorithms get
// them.
class TwoLevelAllreduce {
 public:
  TwoLevelAllreduce(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds)
      : schedule_(schedule),
        team_(team),
        hosts_(hosts),
        here_(team, hosts, rounds),
        slices_(least_ranks(hosts)),
        is_flat_(are_flat(hosts)) {}

  // Of one dtype. Gives the item after which all results are there.
  Schedule::Id allreduce(const std::vector<Piece>& tensors, const Reduction& reduction, Codec codec);

 private:
  enum class Way { kRing, kPairwise };
  // Elements may be read after `ready`.
  Schedule::Id reduce(const std::vector<Piece>& tensors, const Reduction& reduction, Codec codec, Way way,
                      Schedule::Id ready = Schedule::kNone);
  Schedule::Id two_levels(const std::vector<Piece>& tensors, const Reduction& reduction, Codec codec, Way way,
                          HostSum sum, Schedule::Id ready);
  Schedule::Id packed(const std::vector<Piece>& tensors, const Reduction& reduction);
  std::unique_ptr<Algorithm> gather_here(std::byte* elements, const std::vector<Range>& owned, size_t item);

  Schedule& schedule_;
  const Team& team_;
  const Hosts& hosts_;
  WithinHost here_;
  size_t slices_;  // ranks of each host that take part between hosts
  bool is_flat_;   // one rank a host
};

}  // namespace rr
