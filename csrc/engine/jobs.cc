// Group: from a log entry to the algorithm object that executes this rank's part of it. Everything that the ranks must
// agree on is computed from the entry and the members' request slots.

#include <algorithm>

#include "base/errors.h"
#include "collective/linked.h"
#include "collective/pull.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

Team Group::team_for(const RankMask& participants) {
  Team team;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) team.me = static_cast<int>(team.members.size());
    if (participants.test(r)) team.members.push_back(r);
  }
  team.sharing = hosts_.here();
  team.stage = control_.stage(static_cast<size_t>(control_.header().chunk_nbytes));
  team.bells = bells_.wait;
  for (const auto& link : links_) team.links.push_back(link.get());
  team.kernels = &context_.kernels();
  team.writer = &writer_;
  team.bytes_copied = &context_.stats().bytes_copied;
  team.first_round = rounds_base_;
  return team;
}

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

// Null when this rank has no part in the entry: only all-reduces go on without the ranks that have joined, and theirs
// to do is to keep count of the rounds.
std::unique_ptr<Algorithm> Group::build(Entry& entry, const std::vector<OperationPtr>& members, size_t& rounds) {
  Team team = team_for(entry.participants);
  if (members.empty()) {
    rounds = static_cast<size_t>(entry.rounds.load(std::memory_order_acquire) - 1);
    skip_rounds(team.stage, rank_, rounds_base_, rounds);
    negotiation_.ring_waiters();  // not the team's to ring: this rank is none of its members
    return nullptr;
  }
  std::unique_ptr<Algorithm> algorithm = build_part(entry, members, std::move(team), rounds);
  entry.rounds.store(rounds + 1, std::memory_order_release);
  if (control_.header().joined_count.load(std::memory_order_relaxed) != 0) negotiation_.ring_waiters();
  return algorithm;
}

std::unique_ptr<Algorithm> Group::build_part(Entry& entry, const std::vector<OperationPtr>& members, Team team,
                                             size_t& rounds) {
  Operation& first = *members.front();
  if (first.signature.place == Place::kDevice) {
    log_path(entry);
    switch (static_cast<Algo>(entry.algorithm)) {
      case Algo::kIpc:
        return build_ipc(members, team, rounds);
      case Algo::kNccl:
        return build_nccl(members, std::move(team));
      case Algo::kMpi:
        return build_mpi(members, std::move(team));
      case Algo::kStaged:
        add(context_.stats().cuda_staged, 1);
        if (hosts_.several()) return build_in_host_memory(members, team, rounds);
        pin_stage(team);
        break;
      default:
        throw InternalError(where(first) + ": no such path yet: " + rr::name(static_cast<Algo>(entry.algorithm)));
    }
  }
  if (static_cast<Algo>(entry.algorithm) == Algo::kHierarchical) {
    add(context_.stats().hierarchical, 1);
    return build_across_hosts(members, team, hosts_.narrowed(team.members), rounds);
  }
  if (first.kind == Kind::kAllreduce) return build_allreduce(entry, members, std::move(team), rounds);
  if (static_cast<Algo>(entry.algorithm) == Algo::kDirect) return build_pull(entry, first, std::move(team));
  switch (first.kind) {
    case Kind::kReduce:
    case Kind::kReduceScatter: {
      ReduceJob job = reduce_job(first);
      rounds = rounds_of(job, team.stage, team.size());
      return two_shot(std::move(team), std::move(job));
    }
    case Kind::kBroadcast:
      if (static_cast<Algo>(entry.algorithm) == Algo::kTree) {
        add(context_.stats().tree, 1);
        const TensorView& tensor = first.dsts[0];
        return tree_broadcast(std::move(team), first.signature.root, tensor.data, tensor.nbytes());
      }
      break;
    default:
      break;
  }
  ExchangeJob job = exchange_job(first);
  rounds = rounds_of(job, team.stage);
  return exchange(std::move(team), std::move(job));
}

std::unique_ptr<Algorithm> Group::build_allreduce(Entry& entry, const std::vector<OperationPtr>& members, Team team,
                                                  size_t& rounds) {
  const Signature& s = members.front()->signature;
  const Reduction reduction = reduction_of(s, size());
  Stats& stats = context_.stats();
  const Algo algo = static_cast<Algo>(entry.algorithm);
  if (algo == Algo::kDirect) {
    add(stats.direct, 1);
    DirectJob job;
    job.reduction = reduction;
    for (const OperationPtr& member : members) {
      DirectJob::Tensor tensor;
      tensor.count = member->srcs[0].count;
      for (const int r : team.members) {
        const Signature& theirs = control_.signature(member->ticket.request_slot, r);
        tensor.srcs.push_back(mapped(*member, r, theirs.src));
        tensor.dsts.push_back(mapped(*member, r, theirs.dst));
      }
      job.tensors.push_back(std::move(tensor));
    }
    return direct(std::move(team), {control_.claims(cursor_), &entry.completed}, std::move(job));
  }
  std::vector<ReduceJob> jobs = allreduce_jobs(members);
  if (algo == Algo::kRing || algo == Algo::kRecursiveDoubling) {
    std::vector<std::unique_ptr<Algorithm>> parts;
    for (ReduceJob& job : jobs) {
      team.first_round = rounds_base_ + rounds;
      if (!foldable_in_place(job.reduction)) {
        rounds += rounds_of(job, team.stage, team.size());
        parts.push_back(two_shots(team, {std::move(job)}));
        continue;
      }
      const bool is_ring = algo == Algo::kRing;
      add(is_ring ? stats.ring : stats.recursive_doubling, 1);
      parts.push_back(is_ring ? ring(team, std::move(job.pieces), job.reduction)
                              : recursive_doubling(team, std::move(job.pieces), job.reduction));
    }
    return parts.size() == 1 ? std::move(parts.front()) : sequence(std::move(parts));
  }
  for (const ReduceJob& job : jobs) rounds += rounds_of(job, team.stage, team.size());
  return two_shots(std::move(team), std::move(jobs));
}

// One for each dtype.
std::vector<ReduceJob> Group::allreduce_jobs(const std::vector<OperationPtr>& members) const {
  std::vector<ReduceJob> jobs;
  for (auto& [dtype, pieces] : pieces_by_dtype(members)) {
    ReduceJob job;
    job.reduction = reduction_of(members.front()->signature, size());
    job.reduction.dtype = dtype;
    job.element_count = total_count(pieces);
    job.pieces = std::move(pieces);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

std::unique_ptr<Algorithm> Group::two_shots(Team team, std::vector<ReduceJob> jobs) {
  std::vector<std::unique_ptr<Algorithm>> parts;
  for (ReduceJob& job : jobs) {
    add(context_.stats().two_shot, 1);
    const size_t rounds = rounds_of(job, team.stage, team.size());
    parts.push_back(two_shot(team, std::move(job)));
    team.first_round += rounds;
  }
  return parts.size() == 1 ? std::move(parts.front()) : sequence(std::move(parts));
}

std::byte* Group::mapped(const Operation& operation, int rank, const MemoryRef& ref) const {
  if (std::byte* const address = context_.segments().address(ref)) return address;
  throw Error(where(operation) + ": registered memory of rank " + std::to_string(rank) + " is not mapped here");
}

std::unique_ptr<Algorithm> Group::build_pull(Entry& entry, Operation& operation, Team team) {
  add(context_.stats().direct, 1);
  const auto input_of = [&](int r) {
    return mapped(operation, r, control_.signature(operation.ticket.request_slot, r).src);
  };
  PullJob job;
  job.reduction = reduction_of(operation.signature, size());
  if (operation.kind == Kind::kReduceScatter) {
    const TensorView& src = operation.srcs[0];
    const Range rows = segment(src.rows(), size(), rank_);
    PullJob::Part part = {{}, operation.dsts[0].data, operation.dsts[0].count};
    for (const int r : team.members) part.srcs.push_back(input_of(r) + rows.begin * src.row_nbytes());
    job.parts.push_back(std::move(part));
  } else {
    const size_t item = itemsize(operation.signature.dtype);
    for (const ExchangeJob::Incoming& in : exchange_job(operation).incoming) {
      const std::byte* const src = input_of(in.member) + in.src_offset;
      if (src != in.dst) job.parts.push_back({{src}, in.dst, in.nbytes / item});
    }
  }
  return pull(std::move(team), {control_.claims(cursor_), &entry.completed}, std::move(job));
}

ReduceJob Group::reduce_job(const Operation& operation) const {
  const Signature& s = operation.signature;
  ReduceJob job;
  job.reduction = reduction_of(s, size());
  job.pieces = {{operation.srcs[0].data, operation.dsts[0].data, operation.srcs[0].count}};
  job.element_count = operation.srcs[0].count;
  if (operation.kind == Kind::kReduce) {
    job.shape = ReduceShape::kReduce;
    job.root = s.root;
  } else {
    job.shape = ReduceShape::kReduceScatter;
    const size_t row = operation.srcs[0].row_nbytes() / itemsize(s.dtype);
    for (int r = 0; r < size(); ++r) {
      const Range rows = segment(operation.srcs[0].rows(), size(), r);
      job.owned.push_back({rows.begin * row, rows.end * row});
    }
  }
  return job;
}

}  // namespace rr
