// What a request may ask for, and what the ranks must agree on.
#pragma once

#include "planner/operation.h"

namespace rr {

// Throws what submit() would, as far as this rank alone can tell. rank, size: of the group. has_device: this rank works
// on a GPU already.
void check_request(const Request& request, int rank, int size, bool has_device);

// What this rank tells the others of a request, without where its operands are.
Signature sign(const Request& request);

}  // namespace rr
