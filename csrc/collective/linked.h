// Algorithms over links: what runs between hosts, and on one host when it is forced.
#pragma once

#include "collective/algorithm.h"
#include "collective/staged.h"

namespace rr {

// What goes between hosts in pieces, that need not all be there yet.
class Piecewise : public Algorithm {
 public:
  // Only the first `pieces` may be read and written so far. Without a call all may.
  virtual void allow(size_t pieces) = 0;
  // So many pieces from the first on are through, and may be read.
  virtual size_t finished() const = 0;
};

// By piece, which of its elements each member keeps: consecutive ranges in some order of the members.
using Kept = std::vector<std::vector<Range>>;

// All-reduce, or reduce-scatter, of pieces whose counts are the same on all members: where `kept` is given, a member
// has the result of what it keeps, and anything in the rest of dst. A ring then takes no codec.
//
// reduction must be foldable_in_place. The order of an element's sum depends on its place in its piece. codec: how
// float32 elements travel; not kInt8, whose blocks would be rounded again at each step.
std::unique_ptr<Piecewise> ring(Team team, std::vector<Piece> pieces, Reduction reduction, Codec codec = Codec::kNone,
                                Kept kept = {});
// Sums in the order of the members. Two steps, but each rank is sent (N-1) messages at once.
// codec: how float32 inputs travel, and results, if the next one is kNone; check() has passed. Pieces begin at
// multiples of kCodecBlock of their tensor. result: the 16-bit form in which results travel and that dst holds, where
// src and the reduction are float32.
std::unique_ptr<Piecewise> pairwise(Team team, std::vector<Piece> pieces, Reduction reduction, Codec codec,
                                    Kept kept = {}, Codec result = Codec::kNone);
// Pieces that they begin before the first is finished, if there are as many.
size_t pieces_under_way(bool rings, int members);
// Where a tensor is cut for them: into pieces of about piece_nbytes, equal but for a few elements.
std::vector<Range> cut(size_t count, size_t item, size_t piece_nbytes, size_t align);
// Elements at whose multiples anything is cut: a cache line, or what a codec takes as one.
size_t alignment(Codec codec, size_t item);

// Pieces one after the other. reduction must be foldable_in_place.
std::unique_ptr<Algorithm> recursive_doubling(Team team, std::vector<Piece> pieces, Reduction reduction);

// A block of bytes that goes over links.
struct LinkedBlock {
  const std::byte* src = nullptr;  // where it is sent from; dst where it arrives here
  std::byte* dst = nullptr;
  size_t nbytes = 0;
  int from = -1;        // the member that sends it; -1: it is here
  std::vector<int> to;  // the members that this one sends it to
};
// A piece is finished when so many bytes of the block, and all pieces before, are here.
struct LinkedPiece {
  size_t block = 0;
  size_t nbytes = 0;
};
// Blocks that pass the same link in one direction go in their order, on both of its ends. allow() holds nothing back:
// what is sent from here is there.
// most_nbytes: that are pushed at once, and so can be passed on before more has come.
std::unique_ptr<Piecewise> forward(Team team, std::vector<LinkedBlock> blocks, std::vector<LinkedPiece> pieces = {},
                                   size_t most_nbytes = SIZE_MAX);

// Broadcast of nbytes from member `root` down a binomial tree (plan.h).
std::unique_ptr<Algorithm> tree_broadcast(Team team, int root, std::byte* data, size_t nbytes);

// gather, scatter and alltoall: all blocks at once, each straight to those who take it, over links alone.
// Cost: alpha (N-1) + beta times what a rank sends or takes, whichever is more.
std::unique_ptr<Algorithm> mesh(Team team, const ExchangeJob& job);

// dst = prescale * src, and in place dst = postscale * dst (Average: divided): the two ends of a pairwise fold.
void scale_in(const Team& team, const Piece& piece, const Reduction& reduction);
void scale_out(const Team& team, const Piece& piece, const Reduction& reduction);
// The reduction without its factors, for the folds in between.
Reduction bare(const Reduction& reduction);

}  // namespace rr
