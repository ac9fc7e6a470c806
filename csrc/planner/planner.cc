#include "planner/planner.h"

#include <algorithm>
#include <new>

#include "base/errors.h"
#include "collective/linked.h"
#include "collective/pull.h"
#include "collective/schedule/execution.h"
#include "planner/across_hosts.h"
#include "planner/exchange_plan.h"
#include "planner/reduction_plan.h"

namespace rr {

Planner::Planner(Resources resources)
    : from_(std::move(resources)), writer_(from_.settings.staging), on_device_(from_) {}

Team Planner::team_for(const RankMask& participants, uint64_t first_round) {
  Team team;
  for (int r = 0; r < from_.size(); ++r) {
    if (r == from_.rank) team.me = static_cast<int>(team.members.size());
    if (participants.test(r)) team.members.push_back(r);
  }
  team.sharing = from_.hosts.here();
  team.stage = from_.control.stage(static_cast<size_t>(from_.control.header().chunk_nbytes));
  team.bells = from_.bells;
  for (const auto& link : from_.links) team.links.push_back(link.get());
  team.kernels = &from_.kernels;
  team.writer = &writer_;
  team.bytes_copied = &from_.stats.bytes_copied;
  team.first_round = first_round;
  return team;
}

std::unique_ptr<Algorithm> Planner::plan(uint64_t position, const std::vector<OperationPtr>& members,
                                         uint64_t first_round, size_t& rounds) {
  try {
    return algorithm_of(position, members, first_round, rounds);
  } catch (const std::bad_alloc&) {
    const Operation& first = *members.front();
    const std::string what = first.output_nbytes != 0
                                 ? "its result of " + std::to_string(first.output_nbytes) + " bytes"
                                 : "what it works in";
    throw InternalError(from_.where(first) + " out of memory for " + what +
                        "; raise the limit (ulimit -v, a container's), or communicate less at a time");
  }
}

std::unique_ptr<Algorithm> Planner::algorithm_of(uint64_t position, const std::vector<OperationPtr>& members,
                                                 uint64_t first_round, size_t& rounds) {
  const Entry& entry = from_.control.entry(position);
  const Algo algo = static_cast<Algo>(entry.algorithm);
  Team team = team_for(entry.participants, first_round);
  Operation& first = *members.front();
  if (first.signature.place == Place::kDevice) {
    // Between hosts the stage is for host memory as well.
    if (!from_.hosts.several()) team.stage.slot_nbytes = from_.control.header().device_chunk_nbytes;
    if (algo != Algo::kStaged || from_.hosts.several()) return on_device_.plan(entry, members, std::move(team), rounds);
    on_device_.prepare_staged(entry, team);
  }
  const bool is_linked = algo == Algo::kRing || algo == Algo::kRecursiveDoubling;
  if (algo == Algo::kHierarchical || (is_linked && from_.hosts.several() && !are_foldable(members))) {
    add(from_.stats.hierarchical, 1);
    return across_hosts(from_, members, team, from_.hosts.narrowed(team.members), rounds);
  }
  if (first.kind == Kind::kAllreduce) return allreduce(position, members, std::move(team), rounds);
  if (algo == Algo::kDirect) return pull_registered(position, first, std::move(team));
  switch (first.kind) {
    case Kind::kReduce:
    case Kind::kReduceScatter: {
      ReduceJob job = reduce_job(first, from_.size());
      rounds = rounds_of(job, team.stage);
      return two_shot(std::move(team), std::move(job));
    }
    case Kind::kBroadcast:
      if (algo == Algo::kTree) {
        add(from_.stats.tree, 1);
        Schedule schedule;
        tree_broadcast(schedule, team, first.signature.root, first.dsts[0].data, first.dsts[0].nbytes());
        return execute(team, std::move(schedule));
      }
      break;
    default:
      break;
  }
  ExchangeJob job = exchange_job(from_, first);
  rounds = rounds_of(job, team.stage);
  return exchange(std::move(team), std::move(job));
}

// An algorithm is chosen by the first tensor's dtype. A group may have others, which a ring cannot fold: within a host
// they go through the stage, which ranks elsewhere do not have.
bool Planner::are_foldable(const std::vector<OperationPtr>& members) const {
  const std::vector<ReduceJob> jobs = allreduce_jobs(members, from_.size());
  return std::all_of(jobs.begin(), jobs.end(), [](const ReduceJob& job) { return foldable_in_place(job.reduction); });
}

std::unique_ptr<Algorithm> Planner::allreduce(uint64_t position, const std::vector<OperationPtr>& members, Team team,
                                              size_t& rounds) const {
  const Algo algo = static_cast<Algo>(from_.control.entry(position).algorithm);
  if (algo == Algo::kDirect) return direct_allreduce(position, members, std::move(team));
  std::vector<ReduceJob> jobs = allreduce_jobs(members, from_.size());
  if (algo != Algo::kRing && algo != Algo::kRecursiveDoubling) {
    for (const ReduceJob& job : jobs) rounds += rounds_of(job, team.stage);
    return two_shots(std::move(team), std::move(jobs), from_.stats);
  }
  const uint64_t first_round = team.first_round;
  std::vector<std::unique_ptr<Algorithm>> parts;
  for (ReduceJob& job : jobs) {
    team.first_round = first_round + rounds;
    if (!foldable_in_place(job.reduction)) {
      rounds += rounds_of(job, team.stage);
      parts.push_back(two_shots(team, {std::move(job)}, from_.stats));
      continue;
    }
    const bool is_ring = algo == Algo::kRing;
    add(is_ring ? from_.stats.ring : from_.stats.recursive_doubling, 1);
    Schedule schedule;
    if (is_ring) {
      const Ids ready(job.pieces.size(), Schedule::kNone);
      ring(schedule, team, {std::move(job.pieces), ready, job.reduction});
    } else {
      recursive_doubling(schedule, team, job.pieces, job.reduction);
    }
    parts.push_back(execute(team, std::move(schedule)));
  }
  return parts.size() == 1 ? std::move(parts.front()) : sequence(std::move(parts));
}

std::unique_ptr<Algorithm> Planner::direct_allreduce(uint64_t position, const std::vector<OperationPtr>& members,
                                                     Team team) const {
  add(from_.stats.direct, 1);
  DirectJob job;
  job.reduction = reduction_of(members.front()->signature, from_.size());
  for (const OperationPtr& member : members) {
    DirectJob::Tensor tensor;
    tensor.count = member->srcs[0].count;
    for (const int r : team.members) {
      const Signature& theirs = from_.announced(*member, r);
      tensor.srcs.push_back(mapped(*member, r, theirs.src));
      tensor.dsts.push_back(mapped(*member, r, theirs.dst));
    }
    job.tensors.push_back(std::move(tensor));
  }
  return direct(std::move(team), shared_work(position), std::move(job));
}

std::byte* Planner::mapped(const Operation& operation, int rank, const MemoryRef& ref) const {
  if (std::byte* const address = from_.segments.address(ref)) return address;
  throw Error(from_.where(operation) + ": registered memory of rank " + std::to_string(rank) + " is not mapped here");
}

// What is not an all-reduce, straight from the others' registered inputs.
std::unique_ptr<Algorithm> Planner::pull_registered(uint64_t position, Operation& operation, Team team) const {
  add(from_.stats.direct, 1);
  const auto input_of = [&](int r) { return mapped(operation, r, from_.announced(operation, r).src); };
  PullJob job;
  job.reduction = reduction_of(operation.signature, from_.size());
  if (operation.kind == Kind::kReduceScatter) {
    const TensorView& src = operation.srcs[0];
    const Range rows = segment(src.rows(), from_.size(), from_.rank);
    PullJob::Part part = {{}, operation.dsts[0].data, operation.dsts[0].count, true};
    for (const int r : team.members) part.srcs.push_back(input_of(r) + rows.begin * src.row_nbytes());
    job.parts.push_back(std::move(part));
  } else {
    const size_t item = itemsize(operation.signature.dtype);
    for (const ExchangeJob::Incoming& in : exchange_job(from_, operation).incoming) {
      const std::byte* const src = input_of(in.member) + in.src_offset;
      if (src != in.dst) job.parts.push_back({{src}, in.dst, in.nbytes / item});
    }
  }
  return pull(std::move(team), shared_work(position), std::move(job));
}

}  // namespace rr
