// Algorithms over links: what runs between hosts, and on one host when it is forced.
#pragma once

#include "collective/algorithm.h"
#include "collective/staged.h"

namespace rr {

// All-reduce of the pieces, one after the other. reduction must be foldable_in_place.
std::unique_ptr<Algorithm> ring(Team team, std::vector<Piece> pieces, Reduction reduction);
std::unique_ptr<Algorithm> recursive_doubling(Team team, std::vector<Piece> pieces, Reduction reduction);

// Broadcast of nbytes from member `root` down a binomial tree, pipelined by whatever has arrived.
std::unique_ptr<Algorithm> tree_broadcast(Team team, int root, std::byte* data, size_t nbytes);

// allgather, gather, broadcast, scatter and alltoall: all blocks at once, each straight to those who take it.
std::unique_ptr<Algorithm> mesh(Team team, ExchangeJob job);

// dst = prescale * src, and in place dst = postscale * dst (Average: divided): the two ends of a pairwise fold.
void scale_in(const Team& team, const Piece& piece, const Reduction& reduction);
void scale_out(const Team& team, const Piece& piece, const Reduction& reduction);
// The reduction without its factors, for the folds in between.
Reduction bare(const Reduction& reduction);

}  // namespace rr
