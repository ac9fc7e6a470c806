// Which algorithm an operation runs with. On one host only algorithms that fold in rank order are chosen
// by themselves (direct, two_shot, and one_shot from the cells for tiny messages), so results do not depend on the
// choice; the others run when forced.
#pragma once

#include <string>

#include "data/reduction.h"

namespace rr {

enum class Algo : uint32_t {
  kAuto,
  kTwoShot,
  kDirect,
  kRing,
  kRecursiveDoubling,
  kTree,
  kHierarchical,
  kIpc,
  kNccl,
  kMpi,
  kPinned
};

Algo algo_from(const std::string& name);  // throws InvalidArgumentError
const char* name(Algo algo);
// Of kIpc to kPinned, as RINGREDUCE_CUDA_ROAD calls them; see roads.h.
const char* road_name(Algo algo);

// forced is kAuto or a wish: it is followed where the algorithm can do the job.
Algo select_allreduce(Algo forced, const Reduction& reduction, bool registered);
// Of everything else; registered: all inputs are mapped by all ranks.
Algo select_movement(Algo forced, bool is_broadcast, bool registered);
// On several hosts; null: not an all-reduce.
Algo select_across_hosts(Algo forced, const Reduction* reduction);

}  // namespace rr
