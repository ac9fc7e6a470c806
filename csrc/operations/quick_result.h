// The result of a quick operation, computed straight from the request slots and eager buffers once all ranks have
// announced it.
#pragma once

#include <cstddef>

#include "planner/resources.h"

namespace rr {

// Folds a quick all-reduce in rank order, straight from the request slots or eager buffers; this rank's own input comes
// from its tensor.
void reduce_requests(const Resources& from, Ticket ticket, const RankMask& participants, const Reduction& reduction,
                     const std::byte* src, std::byte* dst, size_t count);

// Writes the output of a quick operation: of an all-reduce, and of a broadcast where this rank is not the root.
void compute_quick(const Resources& from, const Operation& operation, const RankMask& participants);

}  // namespace rr
