#include "planner/reduction_plan.h"

#include <algorithm>

namespace rr {

std::vector<std::pair<DType, std::vector<Piece>>> pieces_by_dtype(const std::vector<OperationPtr>& members) {
  std::vector<std::pair<DType, std::vector<Piece>>> by_dtype;
  for (const OperationPtr& member : members) {
    for (size_t i = 0; i < member->srcs.size(); ++i) {
      const DType dtype = member->srcs[i].dtype;
      auto at = std::find_if(by_dtype.begin(), by_dtype.end(), [&](const auto& one) { return one.first == dtype; });
      if (at == by_dtype.end()) at = by_dtype.insert(at, {dtype, {}});
      at->second.push_back({member->srcs[i].data, member->dsts[i].data, member->srcs[i].count});
    }
  }
  return by_dtype;
}

std::vector<ReduceJob> allreduce_jobs(const std::vector<OperationPtr>& members, int size) {
  std::vector<ReduceJob> jobs;
  for (auto& [dtype, pieces] : pieces_by_dtype(members)) {
    ReduceJob job;
    job.reduction = reduction_of(members.front()->signature, size);
    job.reduction.dtype = dtype;
    job.element_count = total_count(pieces);
    job.pieces = std::move(pieces);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

ReduceJob reduce_job(const Operation& operation, int size) {
  const Signature& s = operation.signature;
  ReduceJob job;
  job.reduction = reduction_of(s, size);
  job.pieces = {{operation.srcs[0].data, operation.dsts[0].data, operation.srcs[0].count}};
  job.element_count = operation.srcs[0].count;
  if (operation.kind == Kind::kReduce) {
    job.shape = ReduceShape::kReduce;
    job.root = s.root;
  } else {
    job.shape = ReduceShape::kReduceScatter;
    const size_t row = operation.srcs[0].row_nbytes() / itemsize(s.dtype);
    for (int r = 0; r < size; ++r) {
      const Range rows = segment(operation.srcs[0].rows(), size, r);
      job.owned.push_back({rows.begin * row, rows.end * row});
    }
  }
  return job;
}

std::unique_ptr<Algorithm> two_shots(Team team, std::vector<ReduceJob> jobs, Stats& stats) {
  std::vector<std::unique_ptr<Algorithm>> parts;
  for (ReduceJob& job : jobs) {
    add(stats.two_shot, 1);
    const size_t rounds = rounds_of(job, team.stage);
    parts.push_back(two_shot(team, std::move(job)));
    team.first_round += rounds;
  }
  return parts.size() == 1 ? std::move(parts.front()) : sequence(std::move(parts));
}

}  // namespace rr
