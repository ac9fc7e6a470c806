// Ring all-reduce over links. Example, N = 4, segments abcd, rank 1: pushes b and folds a; pushes a and folds d; pushes
// d and folds c: segment c is complete here. Then it pushes c and pulls b, pushes b and pulls a, pushes a and pulls d.
//
// Pieces overlap (ring_order in collective/plan.h), so that the links carry those behind while one waits for its turn.
//
// Cost: 2(N-1) alpha + 2(N-1)/N S beta + (N-1)/N S gamma. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", JPDC 69 (2009).

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

class Ring final : public Piecewise {
 public:
  Ring(Team team, std::vector<Piece> pieces, Reduction reduction)
      : team_(std::move(team)),
        pieces_(std::move(pieces)),
        reduction_(reduction),
        item_(itemsize(reduction.dtype)),
        order_(ring_order(pieces_.size(), team_.size())),
        received_(pieces_.size(), 0),
        allowed_(pieces_.size()) {}

  void allow(size_t pieces) override { allowed_ = std::min(pieces, pieces_.size()); }

  size_t finished() const override {
    size_t pieces = 0;
    while (pieces < pieces_.size() && received_[pieces] == ring_steps(team_.size())) ++pieces;
    return pieces;
  }

  Step step() override {
    moved_ = false;
    begin();
    while (send()) begin();
    while (receive()) begin();
    if (is_done()) return Step::kDone;
    return moved_ ? Step::kProgress : Step::kIdle;
  }

  bool needs(int rank) const override { return !is_done() && (rank == neighbour(-1) || rank == neighbour(+1)); }

 private:
  struct Way {
    size_t next = 0;    // of order_
    size_t offset = 0;  // bytes
  };

  bool is_done() const { return out_.next == order_.size() && in_.next == order_.size() && begun_ == pieces_.size(); }

  int neighbour(int distance) const {
    return team_.members[static_cast<size_t>((team_.me + distance + team_.size()) % team_.size())];
  }
  Link& link(int distance) const { return *team_.links[static_cast<size_t>(neighbour(distance))]; }

  // Brings the input of the pieces whose turn it is to where they are reduced.
  void begin() {
    const auto turn = [&](const Way& way) {
      return way.next < order_.size() ? order_[way.next].piece : pieces_.size();
    };
    const size_t wanted = std::max(turn(out_), turn(in_));
    for (; begun_ < allowed_ && begun_ <= wanted; ++begun_) {
      scale_in(team_, pieces_[begun_], reduction_);
      // One member: nothing is sent, and nobody is the last to fold.
      if (team_.size() == 1) scale_out(team_, pieces_[begun_], reduction_);
      moved_ = true;
    }
  }

  // Of the piece's elements, in bytes.
  Range bytes(const RingMessage& message, int segment_index) const {
    const Range range = segment(pieces_[message.piece].count, team_.size(), segment_index);
    return {range.begin * item_, range.end * item_};
  }

  // True when a message is through.
  bool send() {
    if (out_.next == order_.size()) return false;
    const RingMessage& message = order_[out_.next];
    // What is passed on has come in the step before.
    if (message.piece >= begun_ || received_[message.piece] < message.step) return false;
    const Range range = bytes(message, ring_step(team_.size(), team_.me, message.step).send);
    const std::byte* const from = pieces_[message.piece].dst + range.begin + out_.offset;
    const size_t left = range.count() - out_.offset;
    return pass(out_, range, left == 0 ? 0 : link(+1).push(from, left));
  }

  bool receive() {
    if (in_.next == order_.size()) return false;
    const RingMessage& message = order_[in_.next];
    if (message.piece >= begun_) return false;
    const RingStep plan = ring_step(team_.size(), team_.me, message.step);
    const Range range = bytes(message, plan.recv);
    std::byte* const to = pieces_[message.piece].dst + range.begin + in_.offset;
    const size_t left = range.count() - in_.offset;
    const auto take = [&] {
      return plan.fold ? link(-1).fold(to, left, bare(reduction_), *team_.kernels) : link(-1).pull(to, left);
    };
    if (!pass(in_, range, left == 0 ? 0 : take())) return false;
    ++received_[message.piece];
    if (message.step == team_.size() - 2) finish(message.piece, range);
    return true;
  }

  // Notes what has moved of the message.
  bool pass(Way& way, Range range, size_t moved) {
    moved_ |= moved != 0;
    way.offset += moved;
    if (way.offset != range.count()) return false;
    moved_ = true;
    ++way.next;
    way.offset = 0;
    return true;
  }

  // The segment has met every rank here, and goes round as it is from now on.
  void finish(size_t piece, Range range) const {
    std::byte* const at = pieces_[piece].dst + range.begin;
    scale_out(team_, {at, at, range.count() / item_}, reduction_);
  }

  Team team_;
  std::vector<Piece> pieces_;
  Reduction reduction_;
  size_t item_;
  std::vector<RingMessage> order_;
  std::vector<int> received_;  // messages, by piece
  size_t allowed_;
  size_t begun_ = 0;
  bool moved_ = false;  // in this step
  Way out_;
  Way in_;
};

}  // namespace

std::unique_ptr<Piecewise> ring(Team team, std::vector<Piece> pieces, Reduction reduction) {
  return std::make_unique<Ring>(std::move(team), std::move(pieces), reduction);
}

}  // namespace rr
