// Operations of a group on several hosts, on host memory. What is no reduction goes straight over the links, each block
// once to each rank that takes it.
#pragma once

#include <memory>
#include <vector>

#include "planner/resources.h"

namespace rr {

// hosts: where the members of the team are. rounds: of the stage, counted up.
std::unique_ptr<Algorithm> across_hosts(const Resources& from, const std::vector<OperationPtr>& members,
                                        const Team& team, const Hosts& hosts, size_t& rounds);

}  // namespace rr
