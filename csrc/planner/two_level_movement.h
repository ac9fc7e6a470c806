// Broadcast and allgather over hosts, on two levels: each byte crosses each host's link once, and the ranks of a host
// share what has arrived through their staging area, while more is on its way.
#pragma once

#include "planner/two_level.h"

namespace rr {

// root: its place in the team. src: at the root.
void two_level_broadcast(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds, int root,
                         const std::byte* src, std::byte* dst, size_t nbytes);

// job: with one block of each member of the team, in their order. All ranks are in the team.
void two_level_allgather(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds,
                         const ExchangeJob& job);

}  // namespace rr
