// The two sizes that depend on the machine: the staging chunk and the largest eager message. From a plan of `ringreduce
// tune`, if there is one; else measured once per topology (under 100 ms) and kept in the user's cache. Agreed through
// the control segment: the leader of a host decides, every rank obeys.
//
// Neither changes results: staging folds in rank order whatever the chunk, and so do the request slots.
#pragma once

#include <cstddef>

#include "engine/group/group_parts.h"

namespace rr {

class Context;
class Group;

struct TunedSizes {
  size_t chunk_nbytes = 256 << 10;  // half of an L2 cache of 512 KiB, with both ranks' parts
  size_t eager_nbytes = kEagerUsual;
};

// For Context's constructor. Collective over the world. Throws MismatchError where ranks of this host have other plans.
void tune(Context& context);

// In force now.
TunedSizes sizes(const Group& group);
// Collective: every rank is between operations when the sizes change. Throws InvalidArgumentError, on all ranks.
void set_sizes(Group& group, const TunedSizes& wanted, Interrupt interrupt);

}  // namespace rr
