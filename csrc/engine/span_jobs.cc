// Group: operations of a group on several hosts. An all-reduce has two levels: the ranks of a host reduce-scatter
// through their staging area, each slice is reduced over one rank a host by pairwise exchange, and the slices are
// gathered again, as a pipeline of pieces. Each byte crosses the network 2(h-1)/h times, and as many ranks of a host
// take part as every host has. All else goes straight over the links, each block once to each rank that takes it.
//
// Source of the two levels with several leaders: Bayatpour, Chakraborty, Subramoni, Lu and Panda, "Scalable reduction
// collectives with data partitioning-based multi-leader design", SC 2017.

#include <algorithm>

#include "collective/hierarchical.h"
#include "collective/linked.h"
#include "collective/pull.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {
namespace {

using Parts = std::vector<std::unique_ptr<Algorithm>>;
using Memory = std::vector<std::unique_ptr<std::byte[]>>;

constexpr size_t kLine = 64;
constexpr size_t kChunkNbytes = 64 << 10;  // of a message between hosts
// Pieces that a host has reduced before it gathers the first: those under way between hosts, and two more.
constexpr size_t kHostLag = 5;

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

}  // namespace

// One contiguous tensor. `within` goes into `across` by whole pieces, and back, see HostPart.
std::unique_ptr<Algorithm> Group::allreduce_on_two_levels(const std::byte* src, std::byte* dst, size_t count,
                                                          const Reduction& reduction, const Team& team,
                                                          size_t& rounds) {
  size_t slices = hosts_.here().size();
  bool is_flat = true;  // one rank a host
  for (const auto& members : hosts_.members) {
    slices = std::min(slices, members.size());
    is_flat = is_flat && members.size() == 1;
  }
  if (!is_flat && !foldable_in_place(reduction)) return allreduce_gathered(src, dst, count, reduction, team);
  const size_t item = itemsize(reduction.dtype);
  const std::vector<Range> cut = cut_for_pairwise(count, item, slices * hosts_.members.size(), kChunkNbytes);
  Team here = part_of(team, hosts_.here());
  const size_t me = static_cast<size_t>(here.me);
  // What the s-th rank of each host reduces between hosts.
  const auto slice = [&](size_t piece, size_t s) {
    return s < slices ? segment(cut[piece].count(), static_cast<int>(slices), static_cast<int>(s), kLine / item)
                      : Range{cut[piece].count(), cut[piece].count()};
  };
  const bool reduces_here = here.size() > 1 || (!is_flat && reduction.prescale != 1.0);
  std::vector<HostPart> parts;
  for (size_t turn = 0; turn < 2 * cut.size(); ++turn) {
    const auto [k, is_gather] = pipeline_turn(cut.size(), kHostLag, turn);
    if (is_gather ? here.size() == 1 : !reduces_here) continue;
    std::byte* const at = dst + cut[k].begin * item;
    here.first_round = rounds_base_ + rounds;
    if (is_gather) {
      ExchangeJob job;
      job.sources.assign(hosts_.here().size(), false);
      if (!slice(k, me).empty()) job.outgoing.push_back({at + slice(k, me).begin * item, slice(k, me).count() * item});
      for (size_t s = 0; s < hosts_.here().size(); ++s) {
        const Range range = slice(k, s);
        job.sources[s] = !range.empty();
        job.largest_nbytes = std::max(job.largest_nbytes, range.count() * item);
        if (range.empty()) continue;
        job.incoming.push_back({static_cast<int>(s), 0, at + range.begin * item, range.count() * item, 0});
      }
      rounds += rounds_of(job, here.stage);
      parts.push_back({k, true, exchange(here, std::move(job))});
    } else {
      ReduceJob job;
      job.shape = ReduceShape::kReduceScatter;
      job.reduction = bare(reduction);
      job.reduction.prescale = reduction.prescale;
      job.element_count = cut[k].count();
      job.pieces = {{src + cut[k].begin * item, at + slice(k, me).begin * item, cut[k].count()}};
      for (size_t s = 0; s < hosts_.here().size(); ++s) job.owned.push_back(slice(k, s));
      rounds += rounds_of(job, here.stage, here.size());
      parts.push_back({k, false, two_shot(here, std::move(job))});
    }
  }
  std::unique_ptr<Pairwise> across;
  if (me < slices) {
    PairwiseJob job;
    job.reduction = reduction;
    if (!is_flat) job.reduction.prescale = 1.0;
    for (size_t k = 0; k < cut.size(); ++k) {
      const Range mine = {cut[k].begin + slice(k, me).begin, cut[k].begin + slice(k, me).end};
      job.pieces.push_back({(reduces_here ? dst : src) + mine.begin * item, dst + mine.begin * item, mine.count()});
    }
    std::vector<int> ranks;
    for (const auto& members : hosts_.members) ranks.push_back(members[me]);
    across = std::make_unique<Pairwise>(part_of(team, ranks), std::move(job));
  }
  return hierarchical(std::move(parts), std::move(across));
}

std::unique_ptr<Algorithm> Group::allreduce_across_hosts(std::vector<Piece> pieces, const Reduction& reduction,
                                                         const Team& team, size_t& rounds) {
  if (pieces.size() == 1) {
    return allreduce_on_two_levels(pieces[0].src, pieces[0].dst, pieces[0].count, reduction, team, rounds);
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
  parts.push_back(allreduce_on_two_levels(whole, whole, count, reduction, team, rounds));
  parts.push_back(copies(team, std::move(out)));
  return sequence(std::move(parts), std::move(memory));
}

// reduce and reducescatter: an all-reduce of which a rank keeps its part.
std::unique_ptr<Algorithm> Group::reduce_across_hosts(Operation& operation, const Reduction& reduction,
                                                      const Team& team, size_t& rounds) {
  const TensorView& src = operation.srcs[0];
  Memory memory;
  std::byte* const whole = allocate(memory, src.nbytes());
  Parts parts;
  parts.push_back(allreduce_on_two_levels(src.data, whole, src.count, reduction, team, rounds));
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
                                                     size_t& rounds) {
  Operation& first = *members.front();
  const Signature& s = first.signature;
  const Reduction reduction = reduction_of(s, size());
  switch (first.kind) {
    case Kind::kAllreduce: {
      Parts parts;
      for (auto& [dtype, pieces] : pieces_by_dtype(members)) {
        Reduction one = reduction;
        one.dtype = dtype;
        parts.push_back(allreduce_across_hosts(std::move(pieces), one, team, rounds));
      }
      return sequence(std::move(parts));
    }
    case Kind::kReduce:
    case Kind::kReduceScatter:
      return reduce_across_hosts(first, reduction, team, rounds);
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
