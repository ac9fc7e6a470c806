#include "planner/across_hosts.h"

#include "collective/linked.h"
#include "collective/schedule/execution.h"
#include "planner/exchange_plan.h"
#include "planner/reduction_plan.h"
#include "planner/two_level_allreduce.h"
#include "planner/two_level_movement.h"
#include "planner/two_level_reduce.h"
#include "planner/two_level_reduce_scatter.h"

namespace rr {
namespace {

// reduce and reducescatter. Where there is no better way, an all-reduce of which a rank keeps its part.
std::unique_ptr<Algorithm> reduce_across_hosts(const Resources& from, const Operation& operation, const Team& team,
                                               const Hosts& hosts, size_t& rounds) {
  const Reduction reduction = reduction_of(operation.signature, from.size());
  const TensorView& src = operation.srcs[0];
  Schedule schedule;
  if (operation.kind == Kind::kReduceScatter && scatters_on_two_levels(hosts, reduction)) {
    const std::vector<Range> kept = reduce_job(operation, from.size()).owned;
    two_level_reduce_scatter(schedule, team, hosts, rounds, {src.data, operation.dsts[0].data, src.count}, kept,
                             reduction);
    return execute(team, std::move(schedule));
  }
  if (operation.kind == Kind::kReduce && reduces_along_chain(hosts, reduction, src.nbytes())) {
    const int root = operation.signature.root;
    std::byte* const dst = root == from.rank ? operation.dsts[0].data : nullptr;
    two_level_reduce(schedule, team, hosts, rounds, root, {src.data, dst, src.count}, reduction);
    return execute(team, std::move(schedule));
  }
  std::byte* const whole = schedule.memory(src.nbytes());
  const Schedule::Id there = TwoLevelAllreduce(schedule, team, hosts, rounds)
                                 .allreduce({{src.data, whole, src.count}}, reduction, Codec::kNone);
  if (operation.kind == Kind::kReduceScatter) {
    const Range rows = segment(src.rows(), from.size(), from.rank);
    schedule.copy(whole + rows.begin * src.row_nbytes(), operation.dsts[0].data, rows.count() * src.row_nbytes(),
                  there);
  } else if (operation.signature.root == from.rank) {
    schedule.copy(whole, operation.dsts[0].data, src.nbytes(), there);
  }
  return execute(team, std::move(schedule));
}

}  // namespace

std::unique_ptr<Algorithm> across_hosts(const Resources& from, const std::vector<OperationPtr>& members,
                                        const Team& team, const Hosts& hosts, size_t& rounds) {
  Operation& first = *members.front();
  const Signature& s = first.signature;
  Schedule schedule;
  switch (first.kind) {
    case Kind::kAllreduce:
      for (auto& [dtype, pieces] : pieces_by_dtype(members)) {
        Reduction one = reduction_of(s, from.size());
        one.dtype = dtype;
        TwoLevelAllreduce(schedule, team, hosts, rounds).allreduce(pieces, one, s.codec);
      }
      break;
    case Kind::kReduce:
    case Kind::kReduceScatter:
      return reduce_across_hosts(from, first, team, hosts, rounds);
    case Kind::kBroadcast: {
      const TensorView& tensor = first.dsts[0];
      const std::byte* const src = s.root == from.rank ? first.srcs[0].data : nullptr;
      two_level_broadcast(schedule, team, hosts, rounds, s.root, src, tensor.data, tensor.nbytes());
      break;
    }
    case Kind::kAllgather:
      two_level_allgather(schedule, team, hosts, rounds, exchange_job(from, first));
      break;
    default:
      mesh(schedule, team, exchange_job(from, first));
  }
  return execute(team, std::move(schedule));
}

}  // namespace rr
