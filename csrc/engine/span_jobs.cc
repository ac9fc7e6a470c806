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
// A message between hosts; between the two, what makes so many pieces of a tensor: the ends of a pipeline are idle.
constexpr size_t kLeastNbytes = 32 << 10;
constexpr size_t kMostNbytes = 256 << 10;
constexpr size_t kPieces = 8;
// From here on a ring: no receiver is sent more at once than its link takes.
constexpr size_t kRingNbytes = 1 << 20;

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

// One contiguous tensor. rings: reduction is foldable_in_place.
std::unique_ptr<Algorithm> Group::allreduce_on_two_levels(const std::byte* src, std::byte* dst, size_t count,
                                                          const Reduction& reduction, const Team& team, size_t& rounds,
                                                          bool rings) {
  size_t slices = hosts.here().size();
  bool is_flat = true;  // one rank a host
  for (const auto& members : hosts.members) {
    slices = std::min(slices, members.size());
    is_flat = is_flat && members.size() == 1;
  }
  if (!is_flat && !foldable_in_place(reduction)) return allreduce_gathered(src, dst, count, reduction, team);
  const size_t item = itemsize(reduction.dtype);
  const size_t lanes = slices * hosts.members.size();
  const size_t message_nbytes = std::clamp(count * item / lanes / kPieces, kLeastNbytes, kMostNbytes);
  const std::vector<Range> pieces = cut(count, item, lanes * message_nbytes);
  // What has to be reduced here before the first piece can come back, and a little more.
  const size_t lag = pieces_under_way(rings, static_cast<int>(hosts.members.size())) + 2;
  Team here = part_of(team, hosts.here());
  const size_t me = static_cast<size_t>(here.me);
  // What the s-th rank of each host reduces between hosts.
  const auto slice = [&](size_t piece, size_t s) {
    return s < slices ? segment(pieces[piece].count(), static_cast<int>(slices), static_cast<int>(s), kLine / item)
                      : Range{pieces[piece].count(), pieces[piece].count()};
  };
  const bool reduces_here = here.size() > 1 || (!is_flat && reduction.prescale != 1.0);
  std::vector<HostPart> parts;
  for (size_t turn = 0; turn < 2 * pieces.size(); ++turn) {
    const auto [k, is_gather] = pipeline_turn(pieces.size(), lag, turn);
    if (is_gather ? here.size() == 1 : !reduces_here) continue;
    std::byte* const at = dst + pieces[k].begin * item;
    here.first_round = rounds_base_ + rounds;
    if (is_gather) {
      ExchangeJob job;
      job.sources.assign(hosts.here().size(), false);
      if (!slice(k, me).empty()) job.outgoing.push_back({at + slice(k, me).begin * item, slice(k, me).count() * item});
      for (size_t s = 0; s < hosts.here().size(); ++s) {
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
      job.element_count = pieces[k].count();
      job.pieces = {{src + pieces[k].begin * item, at + slice(k, me).begin * item, pieces[k].count()}};
      for (size_t s = 0; s < hosts.here().size(); ++s) job.owned.push_back(slice(k, s));
      rounds += rounds_of(job, here.stage, here.size());
      parts.push_back({k, false, two_shot(here, std::move(job))});
    }
  }
  std::unique_ptr<Piecewise> across;
  if (me < slices) {
    Reduction between = reduction;
    if (!is_flat) between.prescale = 1.0;
    std::vector<Piece> mine;
    for (size_t k = 0; k < pieces.size(); ++k) {
      const Range range = {pieces[k].begin + slice(k, me).begin, pieces[k].begin + slice(k, me).end};
      mine.push_back({(reduces_here ? dst : src) + range.begin * item, dst + range.begin * item, range.count()});
    }
    std::vector<int> ranks;
    for (const auto& members : hosts.members) ranks.push_back(members[me]);
    Team leads = part_of(team, ranks);
    across =
        rings ? ring(std::move(leads), std::move(mine), between) : pairwise(std::move(leads), std::move(mine), between);
  }
  return hierarchical(std::move(parts), std::move(across));
}

// Long tensors one by one; the others as one. So neither the way that a tensor takes nor its place in it, by which a
// ring adds up, depends on what shares the bucket: that is a matter of timing.
std::unique_ptr<Algorithm> Group::allreduce_across_hosts(const std::vector<Piece>& pieces, const Reduction& reduction,
                                                         const Team& team, size_t& rounds) {
  const size_t item = itemsize(reduction.dtype);
  Parts parts;
  std::vector<Piece> small;
  for (const Piece& piece : pieces) {
    if (piece.count * item < kRingNbytes || !foldable_in_place(reduction)) {
      small.push_back(piece);
    } else {
      parts.push_back(allreduce_on_two_levels(piece.src, piece.dst, piece.count, reduction, team, rounds, true));
    }
  }
  Memory memory;
  if (small.size() == 1) {
    parts.push_back(
        allreduce_on_two_levels(small[0].src, small[0].dst, small[0].count, reduction, team, rounds, false));
  } else if (!small.empty()) {
    std::byte* const whole = allocate(memory, total_count(small) * item);
    std::vector<PullJob::Part> in;
    std::vector<PullJob::Part> out;
    std::byte* at = whole;
    for (const Piece& piece : small) {
      in.push_back({{piece.src}, at, piece.count * item});
      out.push_back({{at}, piece.dst, piece.count * item});
      at += piece.count * item;
    }
    parts.push_back(copies(team, std::move(in)));
    parts.push_back(allreduce_on_two_levels(whole, whole, total_count(small), reduction, team, rounds, false));
    parts.push_back(copies(team, std::move(out)));
  }
  return sequence(std::move(parts), std::move(memory));
}

// reduce and reducescatter: an all-reduce of which a rank keeps its part.
std::unique_ptr<Algorithm> Group::reduce_across_hosts(Operation& operation, const Reduction& reduction,
                                                      const Team& team, const Hosts& hosts, size_t& rounds) {
  const TensorView& src = operation.srcs[0];
  Memory memory;
  std::byte* const whole = allocate(memory, src.nbytes());
  Parts parts;
  parts.push_back(allreduce_across_hosts({{src.data, whole, src.count}}, reduction, team, rounds));
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
