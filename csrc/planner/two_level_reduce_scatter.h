// Reducescatter over hosts, on two levels: the ranks of a host reduce-scatter through their staging area, so that the
// n-th of each host has the host's sums of what the n-th ranks of all hosts keep, and those reduce-scatter between the
// hosts, as a pipeline of pieces. Each byte crosses the network (h-1)/h times. Where hosts have unequal numbers of
// ranks, as many of each as every host has do so for all of their host.
#pragma once

#include <vector>

#include "planner/two_level.h"

namespace rr {

// Whether it can be done so: a host's sum has a form to travel in.
bool scatters_on_two_levels(const Hosts& hosts, const Reduction& reduction);

// tensor.src: on every rank of the team all elements. kept: by rank, which of them it keeps; they tile the tensor.
// tensor.dst: room for this rank's. rounds: of the stage, counted up.
void two_level_reduce_scatter(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds,
                              const Piece& tensor, const std::vector<Range>& kept, const Reduction& reduction);

}  // namespace rr
