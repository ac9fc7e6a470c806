// Algorithms over links, as items of a schedule: what runs between hosts, and on one host when it is forced. Each gives
// the items after which its pieces, or parts of blocks, are there.
#pragma once

#include "collective/schedule/schedule.h"
#include "collective/staged.h"

namespace rr {

using Ids = std::vector<Schedule::Id>;

// By piece, which of its elements each member keeps: consecutive ranges in some order of the members.
using Kept = std::vector<std::vector<Range>>;

// All-reduce, or reduce-scatter, of pieces whose counts are the same on all members: where `kept` is given, a member
// has the result of what it keeps, and anything in the rest of dst.
// ready: by piece, the item after which it may be read and written.
struct LinkedReduction {
  std::vector<Piece> pieces;
  Ids ready;
  Reduction reduction;
  Codec codec = Codec::kNone;  // pairwise
  Kept kept = {};
  // Pairwise: the 16-bit form in which results travel and that dst holds, where src and the reduction are float32.
  Codec result = Codec::kNone;
};
// reduction must be foldable_in_place. The order of an element's sum depends on its place in its piece. No codec: each
// partial sum would be rounded on its way, and might be too large for fp16 where the average is not.
Ids ring(Schedule& schedule, const Team& team, const LinkedReduction& job);
// Sums in the order of the members. Two steps, but each rank is sent (N-1) messages at once.
// codec: how float32 inputs travel, and results, if `result` is kNone; check() has passed. Pieces begin at multiples of
// kCodecBlock of their tensor.
Ids pairwise(Schedule& schedule, const Team& team, const LinkedReduction& job);
// Everybody is sent all that the others have, and folds in the order of the members: one step, for few bytes. Neither
// codec nor result may be given.
// Cost: alpha + (N-1) S (beta + gamma).
Ids gathered(Schedule& schedule, const Team& team, const LinkedReduction& job);
// Pieces that rings, or pairwise exchanges, begin before the first is finished, if there are as many.
size_t pieces_under_way(bool rings, int members);
// Where a tensor is cut for them: into pieces of about piece_nbytes, equal but for a few elements.
std::vector<Range> cut(size_t count, size_t item, size_t piece_nbytes, size_t align);
// Elements at whose multiples anything is cut: a cache line, or what a codec takes as one.
size_t alignment(Codec codec, size_t item);

// Pieces one after the other. reduction must be foldable_in_place.
void recursive_doubling(Schedule& schedule, const Team& team, const std::vector<Piece>& pieces,
                        const Reduction& reduction);

// A block of bytes that goes over links.
struct LinkedBlock {
  const std::byte* src = nullptr;  // where it is sent from; dst where it arrives here
  std::byte* dst = nullptr;
  size_t nbytes = 0;
  int from = -1;        // the member that sends it; -1: it is here
  std::vector<int> to;  // the members that this one sends it to
  // Where its parts end, ascending, the last at nbytes: each is passed on when it has arrived. Empty: one part.
  std::vector<size_t> ends = {};
};
// Blocks that pass the same link in one direction go in their order, on both of its ends. By part; kNone of one that is
// here.
Ids forward(Schedule& schedule, const Team& team, const LinkedBlock& block);

// Broadcast of nbytes from member `root` down a binomial tree (plan.h).
void tree_broadcast(Schedule& schedule, const Team& team, int root, std::byte* data, size_t nbytes);

// gather, scatter and alltoall: all blocks at once, each straight to those who take it, over links alone.
// Cost: alpha (N-1) + beta times what a rank sends or takes, whichever is more.
void mesh(Schedule& schedule, const Team& team, const ExchangeJob& job);

// dst = prescale * src, and in place dst = postscale * dst (Average: divided): the two ends of a pairwise fold.
Schedule::Id scale_in(Schedule& schedule, const Piece& piece, const Reduction& reduction, const Schedule::After& after);
Schedule::Id scale_out(Schedule& schedule, int members, const Piece& piece, const Reduction& reduction,
                       const Schedule::After& after);
// The reduction without its factors, for the folds in between.
Reduction bare(const Reduction& reduction);

}  // namespace rr
