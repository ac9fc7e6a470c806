// What the machine allows: the work of a collective without its synchronisation, for `fraction_of_limit`.
#pragma once

#include <vector>

#include "measure/bench.h"

namespace rr {

// Seconds that this rank's part of the loads and stores takes, one value a call: every rank rewrites its input, all
// meet, then each does its share of the kernel's work (reductions) or of the copies straight from the others' memory.
// No flags, no claims, no second meeting. The slowest rank's time is the limit at this footprint.
// job.src and job.dst are registered memory of the world, at the same place on every rank; barrier has no limit.
std::vector<double> memory_limit(Group& group, const BenchJob& job, Interrupt interrupt);

// Seconds that news takes from rank 0 to rank 1 (half of a round trip; 0 on other ranks, which wait) by a line that
// both poll; where ranks share cores, each gives way between two looks. job.src as above, at least 64 bytes.
double one_way_latency(Group& group, const BenchJob& job, Interrupt interrupt);

}  // namespace rr
