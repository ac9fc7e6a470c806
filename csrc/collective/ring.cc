// Ring all-reduce over links. Example, N = 4, segments abcd, rank 1: pushes b and folds a; pushes a and folds d; pushes
// d and folds c: segment c is complete here. Then it pushes c and pulls b, pushes b and pulls a, pushes a and pulls d.
//
// Cost: 2(N-1) alpha + 2(N-1)/N S beta + (N-1)/N S gamma. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", JPDC 69 (2009). The plan is collective/plan.h.

#include "collective/linked.h"

#include <cstring>

namespace rr {

void scale_in(const Team& team, const Piece& piece, const Reduction& reduction) {
  Reduction pre = bare(reduction);
  pre.prescale = reduction.prescale;
  if (pre.prescale == 1.0) {
    if (piece.dst != piece.src) std::memcpy(piece.dst, piece.src, piece.count * itemsize(reduction.dtype));
    return;
  }
  const void* src = piece.src;
  void* dst = piece.dst;
  team.kernels->reduce(pre, &src, 1, &dst, 1, piece.count);
}

void scale_out(const Team& team, const Piece& piece, const Reduction& reduction) {
  Reduction post = reduction;
  post.prescale = 1.0;
  if (post.op != ReduceOp::kAverage && post.postscale == 1.0) return;
  const void* src = piece.dst;
  void* dst = piece.dst;
  team.kernels->reduce(post, &src, 1, &dst, 1, piece.count);
}

Reduction bare(const Reduction& reduction) {
  const bool average = reduction.op == ReduceOp::kAverage;
  return {reduction.dtype, average ? ReduceOp::kSum : reduction.op, 1.0, 1.0, 1};
}

namespace {

class Ring final : public Algorithm {
 public:
  Ring(Team team, std::vector<Piece> pieces, Reduction reduction)
      : team_(std::move(team)), pieces_(std::move(pieces)), reduction_(reduction), item_(itemsize(reduction.dtype)) {}

  Step step() override {
    if (piece_ == pieces_.size()) return Step::kDone;
    const Piece& piece = pieces_[piece_];
    if (!begun_) {
      scale_in(team_, piece, reduction_);
      begun_ = true;
      start_step(0);
      return Step::kProgress;
    }
    if (step_ < ring_steps(team_.size())) return move(piece);
    scale_out(team_, piece, reduction_);
    begun_ = false;
    ++piece_;
    return piece_ == pieces_.size() ? Step::kDone : Step::kProgress;
  }

  bool needs(int rank) const override {
    return piece_ < pieces_.size() && (rank == neighbour(-1) || rank == neighbour(+1));
  }

 private:
  int neighbour(int distance) const {
    return team_.members[static_cast<size_t>((team_.me + distance + team_.size()) % team_.size())];
  }

  void start_step(int step) {
    step_ = step;
    if (step_ == ring_steps(team_.size())) return;
    const Piece& piece = pieces_[piece_];
    const RingStep plan = ring_step(team_.size(), team_.me, step_);
    const Range send = segment(piece.count, team_.size(), plan.send);
    const Range recv = segment(piece.count, team_.size(), plan.recv);
    fold_ = plan.fold;
    sending_ = {send.begin * item_, send.end * item_};
    receiving_ = {recv.begin * item_, recv.end * item_};
  }

  Step move(const Piece& piece) {
    Link& right = *team_.links[static_cast<size_t>(neighbour(+1))];
    Link& left = *team_.links[static_cast<size_t>(neighbour(-1))];
    const size_t pushed = sending_.empty() ? 0 : right.push(piece.dst + sending_.begin, sending_.count());
    size_t pulled = 0;
    if (!receiving_.empty()) {
      std::byte* at = piece.dst + receiving_.begin;
      pulled = fold_ ? left.fold(at, receiving_.count(), bare(reduction_), *team_.kernels)
                     : left.pull(at, receiving_.count());
    }
    sending_.begin += pushed;
    receiving_.begin += pulled;
    if (!sending_.empty() || !receiving_.empty()) return pushed + pulled != 0 ? Step::kProgress : Step::kIdle;
    start_step(step_ + 1);
    return Step::kProgress;
  }

  Team team_;
  std::vector<Piece> pieces_;
  Reduction reduction_;
  size_t item_;
  size_t piece_ = 0;
  bool begun_ = false;
  int step_ = 0;
  bool fold_ = true;
  Range sending_;    // bytes still to push, within the piece
  Range receiving_;  // bytes still to come
};

}  // namespace

std::unique_ptr<Algorithm> ring(Team team, std::vector<Piece> pieces, Reduction reduction) {
  return std::make_unique<Ring>(std::move(team), std::move(pieces), reduction);
}

}  // namespace rr
