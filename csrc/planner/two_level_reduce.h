// Reduce over hosts, on two levels: the ranks of a host reduce-scatter through their staging area, the host's sums go
// from host to host along a chain that ends at the root's, each adding its own, and that host's ranks give their slices
// to the root, as a pipeline of pieces. Each byte crosses each host's link once: of an all-reduce 2(h-1)/h times.
//
// Cost between hosts: (h-1) alpha + (S + (h-2) P) beta for pieces of P bytes.
#pragma once

#include "planner/two_level.h"

namespace rr {

// Whether it is done so: the elements can be added up from host to host, and there are enough of them.
bool reduces_along_chain(const Hosts& hosts, const Reduction& reduction, size_t nbytes);

// root: its rank in the group. tensor.dst: at the root. rounds: of the stage, counted up.
void two_level_reduce(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds, int root,
                      const Piece& tensor, const Reduction& reduction);

}  // namespace rr
