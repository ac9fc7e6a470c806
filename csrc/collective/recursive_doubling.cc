// Recursive doubling over links: log2 N exchanges of the whole tensor, for messages whose latency counts.
// Cost: ceil(log2 N) (alpha + S (beta + gamma)), two more for N not a power of two. Source: Thakur, Rabenseifner and
// Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005). Min and Max of zeros of two
// signs, and a sum of two NaNs, depend on the order of their operands. So both partners of an exchange put the lower
// virtual rank's elements first, and compute the same bits.

#include "collective/linked.h"

namespace rr {
namespace {

struct Exchange {
  int member;
  bool sends;
  bool receives;
  bool folds;             // what comes in, as the second operand
  bool is_first = false;  // what the partner sends is the first operand: folded once it is all here
};

std::vector<Exchange> exchanges_of(int size, int me) {
  const Doubling plan(size);
  const int v = plan.virtual_rank(me);
  const bool paired = me < 2 * plan.remainder;
  if (paired && v < 0) return {{me + 1, true, false, false}, {me + 1, false, true, false}};
  std::vector<Exchange> exchanges;
  if (paired) exchanges.push_back({me - 1, false, true, true});
  for (int distance = 1; distance < plan.power; distance *= 2) {
    const bool is_first = (v & distance) != 0;
    exchanges.push_back({plan.real_rank(v ^ distance), true, true, !is_first, is_first});
  }
  if (paired) exchanges.push_back({me - 1, true, false, false});
  return exchanges;
}

}  // namespace

void recursive_doubling(Schedule& schedule, const Team& team, const std::vector<Piece>& pieces,
                        const Reduction& reduction) {
  const size_t item = itemsize(reduction.dtype);
  size_t most = 0;
  for (const Piece& piece : pieces) most = std::max(most, piece.count * item);
  const std::vector<Exchange> exchanges = exchanges_of(team.size(), team.me);
  const bool has_first = std::any_of(exchanges.begin(), exchanges.end(), [](const auto& one) { return one.is_first; });
  std::byte* const outgoing = schedule.memory(most);
  std::byte* const incoming = has_first ? schedule.memory(most) : nullptr;  // where it is the first operand
  Schedule::Id last = Schedule::kNone;
  for (const Piece& piece : pieces) {
    const size_t nbytes = piece.count * item;
    last = scale_in(schedule, piece, reduction, last);
    for (const Exchange& exchange : exchanges) {
      const int rank = team.members[static_cast<size_t>(exchange.member)];
      Ids done = {last};
      if (exchange.sends) {
        // What is sent is a copy, because the fold changes the tensor while that is on its way out.
        const Schedule::Id copied = schedule.copy(piece.dst, outgoing, nbytes, last);
        done = {copied, schedule.send(rank, outgoing, nbytes, copied)};
      }
      if (exchange.receives) {
        const Schedule::Id ready = done.front();
        Schedule::Id taken;
        if (exchange.is_first) {
          taken = schedule.receive(rank, incoming, nbytes, ready);
          taken = schedule.reduce({incoming, piece.dst}, piece.dst, piece.count, bare(reduction), taken);
        } else if (exchange.folds) {
          taken = schedule.fold(rank, piece.dst, nbytes, bare(reduction), ready);
        } else {
          taken = schedule.receive(rank, piece.dst, nbytes, ready);
        }
        done.push_back(taken);
      }
      last = schedule.joint(done);
    }
    last = scale_out(schedule, team.size(), piece, reduction, last);
  }
}

}  // namespace rr
