// The jobs of reductions: what algorithms are given for the members of a log entry.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/stats.h"
#include "collective/staged.h"
#include "planner/operation.h"

namespace rr {

// The tensors of a bucket or group may differ in dtype: one algorithm for each dtype, one after the other.
std::vector<std::pair<DType, std::vector<Piece>>> pieces_by_dtype(const std::vector<OperationPtr>& members);

// An all-reduce of several operations: one job for each dtype. size: ranks of the group.
std::vector<ReduceJob> allreduce_jobs(const std::vector<OperationPtr>& members, int size);

// A reduce or reducescatter.
ReduceJob reduce_job(const Operation& operation, int size);

// All-reduces through the staging area, one after the other.
std::unique_ptr<Algorithm> two_shots(Team team, std::vector<ReduceJob> jobs, Stats& stats);

}  // namespace rr
