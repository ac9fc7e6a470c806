// All-reduce over links by pairwise exchange: what runs between hosts.
#pragma once

#include "collective/algorithm.h"

namespace rr {

struct PairwiseJob {
  // Counts are the same on all members. Each piece is exchanged as a whole: it is what the pipeline goes by.
  std::vector<Piece> pieces;
  Reduction reduction;
};

class Pairwise final : public Algorithm {
 public:
  Pairwise(Team team, PairwiseJob job);

  // Only the first `pieces` may be read and written so far. Without a call all may.
  void allow(size_t pieces) { allowed_ = std::min(pieces, job_.pieces.size()); }
  // So many pieces from the first on are reduced, and may be read.
  size_t finished() const;

  Step step() override;
  bool needs(int rank) const override;

 private:
  // One direction of an edge: which message is next, and what of it is left.
  struct Way {
    size_t next = 0;    // of the schedule
    size_t offset = 0;  // bytes
    size_t inputs = 0;  // messages of each kind that are through
    size_t results = 0;
  };
  struct Edge {
    int member;
    Link* link;
    Way out;
    Way in;
  };

  size_t pieces() const { return job_.pieces.size(); }
  Range owned(size_t piece, int member) const;
  std::byte* received(size_t piece, int member);
  bool send(Edge& edge);
  bool receive(Edge& edge);
  bool pass(Way& way, size_t nbytes, size_t moved);
  bool fold();

  Team team_;
  PairwiseJob job_;
  size_t item_;
  size_t lane_;  // bytes: the largest segment of a piece
  std::unique_ptr<std::byte[]> inputs_;
  std::vector<Edge> edges_;
  size_t allowed_;
  size_t folded_ = 0;
};

// How the elements of a job are cut for it: pieces of about `chunk_nbytes` a member, equal but for a line.
std::vector<Range> cut_for_pairwise(size_t count, size_t item, size_t members, size_t chunk_nbytes);

}  // namespace rr
