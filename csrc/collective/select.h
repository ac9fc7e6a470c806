// Which algorithm an operation runs with. On one host only algorithms that fold in rank order are chosen
// by themselves (direct, two_shot, and one_shot from the request slots for tiny messages), so results do not depend on
// the choice; the others run when forced.
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
  kStaged
};

Algo algo_from(const std::string& name);  // throws InvalidArgumentError
const char* name(Algo algo);
// Of kIpc to kStaged, as RINGREDUCE_GPU_PATH calls them; see gpu_path.h.
const char* path_name(Algo algo);

// forced: kAuto, or an algorithm, which is taken where it can do the job.
Algo select_allreduce(Algo forced, const Reduction& reduction, bool registered);
// Of everything else; registered: all inputs are mapped by all ranks.
Algo select_movement(Algo forced, bool is_broadcast, bool registered);
// On several hosts; null: not an all-reduce. Algorithms that can be forced there know no codec.
Algo select_across_hosts(Algo forced, const Reduction* reduction, Codec codec);

}  // namespace rr
