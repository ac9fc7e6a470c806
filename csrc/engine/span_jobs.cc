// Group: operations of a group on several hosts. An all-reduce has two levels: the ranks of a host reduce-scatter
// through their staging area, each slice is reduced over one rank a host, and the slices are gathered again. Between
// hosts each rank sends every other one the segment that it owns, folds its own segment in the order of the hosts, and
// sends the result to all: 2 alpha + 2(h-1)/h S beta. That is what a ring moves, in two steps instead of 2(h-1), and
// the order of the sum depends neither on a segment's place nor on what else shares the bucket. As many ranks of a host
// take part as every host has. All else goes straight over the links, each block once to each rank that takes it.
//
// Source of the two levels with several leaders: Bayatpour, Chakraborty, Subramoni, Lu and Panda, "Scalable reduction
// collectives with data partitioning-based multi-leader design", SC 2017.

#include <algorithm>

#include "collective/linked.h"
#include "collective/pull.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {
namespace {

using Parts = std::vector<std::unique_ptr<Algorithm>>;
using Memory = std::vector<std::unique_ptr<std::byte[]>>;

std::byte* allocate(Memory& memory, size_t nbytes) {
  memory.emplace_back(new std::byte[std::max<size_t>(1, nbytes)]);
  return memory.back().get();
}

// Copies of bytes.
std::unique_ptr<Algorithm> copies(const Team& team, std::vector<PullJob::Part> parts) {
  PullJob job;
  job.reduction.dtype = DType::kUInt8;
  job.parts = std::move(parts);
  return local(*team.kernels, std::move(job));
}

// The members of a team with these group ranks.
Team part_of(const Team& team, const std::vector<int>& ranks) {
  Team part = team;
  part.members = ranks;
  const auto at = std::find(ranks.begin(), ranks.end(), team.rank());
  part.me = static_cast<int>(at - ranks.begin());
  return part;
}

// Every rank sends all it has to everybody, who fold in rank order: for reductions that cannot be folded pairwise.
// Moves (N-1) S bytes a rank.
std::unique_ptr<Algorithm> allreduce_gathered(const std::byte* src, std::byte* dst, size_t count,
                                              const Reduction& reduction, const Team& team) {
  const size_t nbytes = count * itemsize(reduction.dtype);
  Memory memory;
  ExchangeJob job;
  job.outgoing.push_back({src, nbytes});
  std::vector<const std::byte*> srcs;
  for (int member = 0; member < team.size(); ++member) {
    if (member == team.me) {
      srcs.push_back(src);
      continue;
    }
    std::byte* const theirs = allocate(memory, nbytes);
    job.incoming.push_back({member, 0, theirs, nbytes, 0});
    srcs.push_back(theirs);
  }
  Parts parts;
  parts.push_back(mesh(team, std::move(job)));
  parts.push_back(local(*team.kernels, {{{std::move(srcs), dst, count}}, reduction}));
  return sequence(std::move(parts), std::move(memory));
}

// n elements at src, over one rank of each host, to dst, which may be src. In the order of the team.
std::unique_ptr<Algorithm> allreduce_among(const Team& team, const std::byte* src, std::byte* dst, size_t n,
                                           const Reduction& reduction) {
  const size_t item = itemsize(reduction.dtype);
  const auto owned = [&](int member) { return segment(n, team.size(), member); };
  const Range mine = owned(team.me);
  Memory memory;
  ExchangeJob to_owners;
  ExchangeJob to_all;
  to_owners.lanes = team.size();
  std::vector<const std::byte*> srcs;
  for (int member = 0; member < team.size(); ++member) {
    const Range theirs = owned(member);
    to_owners.outgoing.push_back({src + theirs.begin * item, theirs.count() * item});
    if (member == team.me) {
      srcs.push_back(src + mine.begin * item);
      continue;
    }
    std::byte* const part = allocate(memory, mine.count() * item);
    to_owners.incoming.push_back({member, team.me, part, mine.count() * item, 0});
    srcs.push_back(part);
    to_all.incoming.push_back({member, 0, dst + theirs.begin * item, theirs.count() * item, 0});
  }
  to_all.outgoing.push_back({dst + mine.begin * item, mine.count() * item});
  Parts parts;
  parts.push_back(mesh(team, std::move(to_owners)));
  parts.push_back(local(*team.kernels, {{{std::move(srcs), dst + mine.begin * item, mine.count()}}, reduction}));
  parts.push_back(mesh(team, std::move(to_all)));
  return sequence(std::move(parts), std::move(memory));
}

}  // namespace

// One contiguous tensor.
std::unique_ptr<Algorithm> Group::allreduce_on_two_levels(const std::byte* src, std::byte* dst, size_t count,
                                                          const Reduction& reduction, const Team& team,
                                                          const Hosts& hosts, size_t& rounds) {
  if (!foldable_in_place(reduction)) return allreduce_gathered(src, dst, count, reduction, team);
  const size_t item = itemsize(reduction.dtype);
  const std::vector<int>& here = hosts.here();
  size_t slices = here.size();
  for (const auto& members : hosts.members) slices = std::min(slices, members.size());
  Team local = part_of(team, here);
  const size_t me = static_cast<size_t>(local.me);
  const auto slice = [&](size_t s) {
    return s < slices ? segment(count, static_cast<int>(slices), static_cast<int>(s)) : Range{count, count};
  };
  Parts parts;
  const bool several_here = here.size() > 1;
  Reduction within = bare(reduction);
  within.prescale = reduction.prescale;
  if (several_here) {
    ReduceJob job;
    job.shape = ReduceShape::kReduceScatter;
    job.reduction = within;
    job.element_count = count;
    job.pieces = {{src, dst + slice(me).begin * item, count}};
    for (size_t s = 0; s < here.size(); ++s) job.owned.push_back(slice(s));
    local.first_round = rounds_base_ + rounds;
    rounds += rounds_of(job, local.stage, local.size());
    parts.push_back(two_shot(local, std::move(job)));
  }
  if (me < slices && !slice(me).empty()) {
    std::vector<int> ranks;
    for (const auto& members : hosts.members) ranks.push_back(members[me]);
    Reduction across = reduction;
    if (several_here) across.prescale = 1.0;
    std::byte* const mine = dst + slice(me).begin * item;
    const std::byte* const from = several_here ? mine : src + slice(me).begin * item;
    parts.push_back(allreduce_among(part_of(team, ranks), from, mine, slice(me).count(), across));
  }
  if (several_here) {
    ExchangeJob job;
    job.sources.assign(here.size(), false);
    if (!slice(me).empty()) job.outgoing.push_back({dst + slice(me).begin * item, slice(me).count() * item});
    for (size_t s = 0; s < here.size(); ++s) {
      const Range range = slice(s);
      job.sources[s] = !range.empty();
      job.largest_nbytes = std::max(job.largest_nbytes, range.count() * item);
      if (!range.empty()) {
        job.incoming.push_back({static_cast<int>(s), 0, dst + range.begin * item, range.count() * item, 0});
      }
    }
    local.first_round = rounds_base_ + rounds;
    rounds += rounds_of(job, local.stage);
    parts.push_back(exchange(std::move(local), std::move(job)));
  }
  return sequence(std::move(parts));
}

std::unique_ptr<Algorithm> Group::allreduce_across_hosts(std::vector<Piece> pieces, const Reduction& reduction,
                                                         const Team& team, const Hosts& hosts, size_t& rounds) {
  if (pieces.size() == 1) {
    return allreduce_on_two_levels(pieces[0].src, pieces[0].dst, pieces[0].count, reduction, team, hosts, rounds);
  }
  const size_t item = itemsize(reduction.dtype);
  const size_t count = total_count(pieces);
  Memory memory;
  std::byte* const whole = allocate(memory, count * item);
  std::vector<PullJob::Part> in;
  std::vector<PullJob::Part> out;
  std::byte* at = whole;
  for (const Piece& piece : pieces) {
    in.push_back({{piece.src}, at, piece.count * item});
    out.push_back({{at}, piece.dst, piece.count * item});
    at += piece.count * item;
  }
  Parts parts;
  parts.push_back(copies(team, std::move(in)));
  parts.push_back(allreduce_on_two_levels(whole, whole, count, reduction, team, hosts, rounds));
  parts.push_back(copies(team, std::move(out)));
  return sequence(std::move(parts), std::move(memory));
}

// reduce and reducescatter: an all-reduce of which a rank keeps its part.
std::unique_ptr<Algorithm> Group::reduce_across_hosts(Operation& operation, const Reduction& reduction,
                                                      const Team& team, const Hosts& hosts, size_t& rounds) {
  const TensorView& src = operation.srcs[0];
  Memory memory;
  std::byte* const whole = allocate(memory, src.nbytes());
  Parts parts;
  parts.push_back(allreduce_on_two_levels(src.data, whole, src.count, reduction, team, hosts, rounds));
  if (operation.kind == Kind::kReduceScatter) {
    const Range rows = segment(src.rows(), size(), rank_);
    parts.push_back(copies(
        team, {{{whole + rows.begin * src.row_nbytes()}, operation.dsts[0].data, rows.count() * src.row_nbytes()}}));
  } else if (operation.signature.root == rank_) {
    parts.push_back(copies(team, {{{whole}, operation.dsts[0].data, src.nbytes()}}));
  }
  return sequence(std::move(parts), std::move(memory));
}

std::unique_ptr<Algorithm> Group::build_across_hosts(const std::vector<OperationPtr>& members, const Team& team,
                                                     const Hosts& hosts, size_t& rounds) {
  Operation& first = *members.front();
  const Signature& s = first.signature;
  const Reduction reduction = reduction_of(s, size());
  switch (first.kind) {
    case Kind::kAllreduce: {
      Parts parts;
      for (auto& [dtype, pieces] : pieces_by_dtype(members)) {
        Reduction one = reduction;
        one.dtype = dtype;
        parts.push_back(allreduce_across_hosts(std::move(pieces), one, team, hosts, rounds));
      }
      return sequence(std::move(parts));
    }
    case Kind::kReduce:
    case Kind::kReduceScatter:
      return reduce_across_hosts(first, reduction, team, hosts, rounds);
    case Kind::kBroadcast: {
      const TensorView& tensor = first.dsts[0];
      Parts parts;
      if (s.root == rank_) parts.push_back(copies(team, {{{first.srcs[0].data}, tensor.data, tensor.nbytes()}}));
      parts.push_back(tree_broadcast(team, s.root, tensor.data, tensor.nbytes()));
      return sequence(std::move(parts));
    }
    default:
      return mesh(team, exchange_job(first));
  }
}

}  // namespace rr
