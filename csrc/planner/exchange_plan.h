// The blocks that an allgather, gather, broadcast, scatter or alltoall moves, read off the members' requests.
#pragma once

#include <cstddef>
#include <string>

#include "collective/staged.h"
#include "planner/resources.h"

namespace rr {

// Also makes room for an output whose size only the operation knows, and says how many rows come from each rank.
ExchangeJob exchange_job(const Resources& from, Operation& operation);

// Where the caller said, if that has just the size of the output; else new memory.
std::byte* allocate_output(const Resources& from, Operation& operation);

// Why the output is not what the caller has room for; "" when it is. The other ranks have what they wanted either way.
// rank: this one, in the group.
std::string unexpected_rows(const Operation& operation, int rank);

}  // namespace rr
