// Ring all-reduce over links. Example, N = 4, segments abcd, rank 1: pushes b and folds a; pushes a and folds d; pushes
// d and folds c: segment c is complete here. Then it pushes c and pulls b, pushes b and pulls a, pushes a and pulls d.
//
// Pieces overlap (ring_order in collective/plan.h), so that the links carry those behind while one waits for its turn.
//
// Reduce-scatter is the first half of it.
//
// A codec of single elements rounds each partial sum on its way, and the result once.
//
// Cost: 2(N-1) alpha + 2(N-1)/N S beta + (N-1)/N S gamma; of reduce-scatter half of alpha's and beta's. Source:
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009).

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
  // One member folds nothing; what is true is 1 all the same.
  const bool is_truth = team.size() == 1 && (post.op == ReduceOp::kLogicalAnd || post.op == ReduceOp::kLogicalOr);
  if (post.op != ReduceOp::kAverage && post.postscale == 1.0 && !is_truth) return;
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
  Ring(Team team, std::vector<Piece> pieces, Reduction reduction, Codec codec, Kept kept)
      : team_(std::move(team)),
        pieces_(std::move(pieces)),
        reduction_(reduction),
        item_(itemsize(reduction.dtype)),
        codec_(codec),
        kept_(std::move(kept)),
        steps_(kept_.empty() ? ring_steps(team_.size()) : ring_scatter_steps(team_.size())),
        order_(ring_order(pieces_.size(), steps_)),
        received_(pieces_.size(), 0),
        allowed_(pieces_.size()) {
    if (codec_ == Codec::kNone) return;
    size_t most = 0;
    for (const Piece& piece : pieces_) most = std::max(most, segment(piece.count, team_.size(), 0).count());
    sent_ = take_scratch(most * sizeof(float));
    taken_ = take_scratch(most * sizeof(float));
    decoded_ = take_scratch(most * sizeof(float));
  }

  void allow(size_t pieces) override { allowed_ = std::min(pieces, pieces_.size()); }

  size_t finished() const override { return finished_; }

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
      if (team_.size() == 1) {  // nothing is sent, and nobody is the last to fold
        scale_out(team_, pieces_[begun_], reduction_);
        ++finished_;
      }
      moved_ = true;
    }
  }

  Range elements(const RingMessage& message, int segment_index) const {
    if (kept_.empty()) return segment(pieces_[message.piece].count, team_.size(), segment_index);
    return kept_[message.piece][static_cast<size_t>(ring_keeper(team_.size(), segment_index))];
  }
  size_t nbytes(Range range) const {
    return codec_ == Codec::kNone ? range.count() * item_ : codec_nbytes(codec_, range.count());
  }

  // True when a message is through.
  bool send() {
    if (out_.next == order_.size()) return false;
    const RingMessage& message = order_[out_.next];
    // What is passed on has come in the step before.
    if (message.piece >= begun_ || received_[message.piece] < message.step) return false;
    const Range range = elements(message, ring_step(team_.size(), team_.me, message.step).send);
    const std::byte* from = pieces_[message.piece].dst + range.begin * item_;
    if (codec_ != Codec::kNone) {
      if (encoded_ != out_.next) team_.kernels->encode(codec_, from, sent_.get(), range.count());
      encoded_ = out_.next;
      from = sent_.get();
    }
    const size_t left = nbytes(range) - out_.offset;
    return pass(out_, range, left == 0 ? 0 : link(+1).push(from + out_.offset, left));
  }

  bool receive() {
    if (in_.next == order_.size()) return false;
    const RingMessage& message = order_[in_.next];
    if (message.piece >= begun_) return false;
    const RingStep plan = ring_step(team_.size(), team_.me, message.step);
    const Range range = elements(message, plan.recv);
    std::byte* const at = pieces_[message.piece].dst + range.begin * item_;
    const size_t left = nbytes(range) - in_.offset;
    const auto take = [&] {
      if (codec_ != Codec::kNone) return link(-1).pull(taken_.get() + in_.offset, left);
      std::byte* const to = at + in_.offset;
      return plan.fold ? link(-1).fold(to, left, bare(reduction_), *team_.kernels) : link(-1).pull(to, left);
    };
    if (!pass(in_, range, left == 0 ? 0 : take())) return false;
    if (codec_ != Codec::kNone) decode(at, range.count(), plan.fold);
    ++received_[message.piece];
    while (finished_ < pieces_.size() && received_[finished_] == steps_) ++finished_;
    if (message.step == team_.size() - 2) finish(at, range.count());
    return true;
  }

  void decode(std::byte* at, size_t count, bool folds) {
    team_.kernels->decode(codec_, taken_.get(), folds ? decoded_.get() : at, count);
    if (!folds || count == 0) return;
    const void* inputs[2] = {at, decoded_.get()};
    void* dst = at;
    team_.kernels->reduce(bare(reduction_), inputs, 2, &dst, 1, count);
  }

  // Notes what has moved of the message.
  bool pass(Way& way, Range range, size_t moved) {
    moved_ |= moved != 0;
    way.offset += moved;
    if (way.offset != nbytes(range)) return false;
    moved_ = true;
    ++way.next;
    way.offset = 0;
    return true;
  }

  // The segment has met every rank here, and goes round as it is from now on: encoding it again changes nothing.
  void finish(std::byte* at, size_t count) const {
    scale_out(team_, {at, at, count}, reduction_);
    if (codec_ != Codec::kNone) codec_round_trip(*team_.kernels, codec_, at, count);
  }

  Team team_;
  std::vector<Piece> pieces_;
  Reduction reduction_;
  size_t item_;
  Codec codec_;
  Kept kept_;
  int steps_;
  HostScratch sent_;           // the messages under way, where there is a codec
  size_t encoded_ = SIZE_MAX;  // the message of order_ that sent_ has
  HostScratch taken_;
  HostScratch decoded_;
  std::vector<RingMessage> order_;
  std::vector<int> received_;  // messages, by piece
  size_t allowed_;
  size_t begun_ = 0;
  size_t finished_ = 0;
  bool moved_ = false;  // in this step
  Way out_;
  Way in_;
};

}  // namespace

std::unique_ptr<Piecewise> ring(Team team, std::vector<Piece> pieces, Reduction reduction, Codec codec, Kept kept) {
  return std::make_unique<Ring>(std::move(team), std::move(pieces), reduction, codec, std::move(kept));
}

}  // namespace rr
