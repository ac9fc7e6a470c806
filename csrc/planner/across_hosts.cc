#include "planner/across_hosts.h"

#include "collective/linked.h"
#include "planner/exchange_plan.h"
#include "planner/reduction_plan.h"
#include "planner/two_level_allreduce.h"
#include "planner/two_level_movement.h"
#include "planner/two_level_reduce_scatter.h"

namespace rr {
namespace {

// reduce and reducescatter. Where there is no better way, an all-reduce of which a rank keeps its part.
std::unique_ptr<Algorithm> reduce_across_hosts(const Resources& from, const Operation& operation, const Team& team,
                                               const Hosts& hosts, size_t& rounds) {
  const Reduction reduction = reduction_of(operation.signature, from.size());
  const TensorView& src = operation.srcs[0];
  if (operation.kind == Kind::kReduceScatter && scatters_on_two_levels(hosts, reduction)) {
    const std::vector<Range> kept = reduce_job(operation, from.size()).owned;
    return two_level_reduce_scatter(team, hosts, rounds, {src.data, operation.dsts[0].data, src.count}, kept,
                                    reduction);
  }
  Memory memory;
  std::byte* const whole = allocate(memory, src.nbytes());
  Parts parts;
  parts.push_back(
      TwoLevelAllreduce(team, hosts, rounds).allreduce({{src.data, whole, src.count}}, reduction, Codec::kNone));
  if (operation.kind == Kind::kReduceScatter) {
    const Range rows = segment(src.rows(), from.size(), from.rank);
    parts.push_back(copies(
        team, {{{whole + rows.begin * src.row_nbytes()}, operation.dsts[0].data, rows.count() * src.row_nbytes()}}));
  } else if (operation.signature.root == from.rank) {
    parts.push_back(copies(team, {{{whole}, operation.dsts[0].data, src.nbytes()}}));
  }
  return sequence(std::move(parts), std::move(memory));
}

}  // namespace

std::unique_ptr<Algorithm> across_hosts(const Resources& from, const std::vector<OperationPtr>& members,
                                        const Team& team, const Hosts& hosts, size_t& rounds) {
  Operation& first = *members.front();
  const Signature& s = first.signature;
  switch (first.kind) {
    case Kind::kAllreduce: {
      Parts parts;
      for (auto& [dtype, pieces] : pieces_by_dtype(members)) {
        Reduction one = reduction_of(s, from.size());
        one.dtype = dtype;
        parts.push_back(TwoLevelAllreduce(team, hosts, rounds).allreduce(pieces, one, s.codec));
      }
      return sequence(std::move(parts));
    }
    case Kind::kReduce:
    case Kind::kReduceScatter:
      return reduce_across_hosts(from, first, team, hosts, rounds);
    case Kind::kBroadcast: {
      const TensorView& tensor = first.dsts[0];
      const std::byte* const src = s.root == from.rank ? first.srcs[0].data : nullptr;
      return two_level_broadcast(team, hosts, rounds, s.root, src, tensor.data, tensor.nbytes());
    }
    case Kind::kAllgather:
      return two_level_allgather(team, hosts, rounds, exchange_job(from, first));
    default:
      return mesh(team, exchange_job(from, first));
  }
}

}  // namespace rr
