// Operations of a group on several hosts, on host memory. The blocks of a gather, scatter or alltoall go straight over
// the links to the ranks that take them, all else on two levels.
#pragma once

#include <memory>
#include <vector>

#include "planner/resources.h"

namespace rr {

// hosts: where the members of the team are. rounds: of the stage, counted up.
std::unique_ptr<Algorithm> across_hosts(const Resources& from, const std::vector<OperationPtr>& members,
                                        const Team& team, const Hosts& hosts, size_t& rounds);

}  // namespace rr
