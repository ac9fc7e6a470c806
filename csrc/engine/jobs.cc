// Group: from a log entry to the algorithm object that executes this rank's part of it. Everything that the ranks must
// agree on is computed from the entry and the members' cells.

#include "base/errors.h"
#include "collective/linked.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

Team Group::team_for(const RankMask& participants) const {
  Team team;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) team.me = static_cast<int>(team.members.size());
    if (participants.test(r)) team.members.push_back(r);
  }
  team.stage = board_.stage(static_cast<size_t>(board_.header().chunk_nbytes));
  team.bells = bells_.wait;
  for (const auto& link : links_) team.links.push_back(link.get());
  team.kernels = &context_.kernels();
  team.bytes_copied = &context_.stats().bytes_copied;
  team.first_round = rounds_base_;
  return team;
}

namespace {

size_t total_count(const std::vector<Piece>& pieces) {
  size_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

Reduction reduction_of(const Signature& s, int size) { return {s.dtype, s.op, s.prescale, s.postscale, size}; }

}  // namespace

// Null (with the rounds set) when this rank has no part in the entry.
std::unique_ptr<Algorithm> Group::build(Entry& entry, const std::vector<OperationPtr>& members, size_t& rounds) {
  Team team = team_for(entry.participants);
  if (members.empty()) {
    // Only all-reduces go on without the ranks that have joined; theirs to do is to keep count of the rounds.
    const Signature& one = board_.signature(entry.member[0].cell, team.members[0]);
    ReduceJob job;
    job.reduction = reduction_of(one, size());
    job.element_count = static_cast<size_t>(entry.nbytes) / itemsize(one.dtype);
    if (static_cast<Algo>(entry.algorithm) == Algo::kTwoShot) rounds = rounds_of(job, team.stage, team.size());
    skip_rounds(team.stage, rank_, rounds_base_, rounds);
    ledger_.ring_waiters();  // not the team's to ring: this rank is none of its members
    return nullptr;
  }
  Operation& first = *members.front();
  switch (first.kind) {
    case Kind::kAllreduce:
      return build_allreduce(entry, members, std::move(team), rounds);
    case Kind::kReduce:
    case Kind::kReduceScatter:
      return build_reduce(first, std::move(team), rounds);
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
        const Signature& theirs = board_.signature(member->ticket.cell, r);
        tensor.srcs.push_back(context_.segments().address(theirs.src));
        tensor.dsts.push_back(context_.segments().address(theirs.dst));
        if (tensor.srcs.back() == nullptr || tensor.dsts.back() == nullptr) {
          throw Error(where(*member) + ": registered memory of rank " + std::to_string(r) + " is not mapped here");
        }
      }
      job.tensors.push_back(std::move(tensor));
    }
    return direct(std::move(team), {board_.claims(cursor_), &entry.completed}, std::move(job));
  }
  std::vector<Piece> pieces;
  for (const OperationPtr& member : members) {
    for (size_t i = 0; i < member->srcs.size(); ++i) {
      pieces.push_back({member->srcs[i].data, member->dsts[i].data, member->srcs[i].count});
    }
  }
  if (algo == Algo::kRing) {
    add(stats.ring, 1);
    return ring(std::move(team), std::move(pieces), reduction);
  }
  if (algo == Algo::kRecursiveDoubling) {
    add(stats.recursive_doubling, 1);
    return recursive_doubling(std::move(team), std::move(pieces), reduction);
  }
  add(stats.two_shot, 1);
  ReduceJob job;
  job.reduction = reduction;
  job.element_count = total_count(pieces);
  job.pieces = std::move(pieces);
  rounds = rounds_of(job, team.stage, team.size());
  return two_shot(std::move(team), std::move(job));
}

std::unique_ptr<Algorithm> Group::build_reduce(Operation& operation, Team team, size_t& rounds) const {
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
  rounds = rounds_of(job, team.stage, team.size());
  return two_shot(std::move(team), std::move(job));
}

}  // namespace rr
