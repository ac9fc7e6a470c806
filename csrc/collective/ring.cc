// Ring all-reduce over links. Example, N = 4, segments abcd, rank 1: pushes b and folds a; pushes a and folds d; pushes
// d and folds c: segment c is complete here. Then it pushes c and pulls b, pushes b and pulls a, pushes a and pulls d.
//
// Pieces overlap (ring_order in collective/plan.h), so that the links carry those behind while one waits for its turn.
//
// Reduce-scatter is the first half of it.
//
// Cost: 2(N-1) alpha + 2(N-1)/N S beta + (N-1)/N S gamma; of reduce-scatter half of alpha's and beta's. Source:
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009).

#include "collective/linked.h"

namespace rr {

Schedule::Id scale_in(Schedule& schedule, const Piece& piece, const Reduction& reduction,
                      const Schedule::After& after) {
  Reduction pre = bare(reduction);
  pre.prescale = reduction.prescale;
  if (pre.prescale != 1.0) return schedule.reduce({piece.src}, piece.dst, piece.count, pre, after);
  if (piece.dst == piece.src) return schedule.joint(after);
  return schedule.copy(piece.src, piece.dst, piece.count * itemsize(reduction.dtype), after);
}

Schedule::Id scale_out(Schedule& schedule, int members, const Piece& piece, const Reduction& reduction,
                       const Schedule::After& after) {
  Reduction post = reduction;
  post.prescale = 1.0;
  // One member folds nothing; what is true is 1 all the same.
  const bool is_truth = members == 1 && (post.op == ReduceOp::kLogicalAnd || post.op == ReduceOp::kLogicalOr);
  if (post.op != ReduceOp::kAverage && post.postscale == 1.0 && !is_truth) return schedule.joint(after);
  return schedule.reduce({piece.dst}, piece.dst, piece.count, post, after);
}

Reduction bare(const Reduction& reduction) {
  const bool average = reduction.op == ReduceOp::kAverage;
  return {reduction.dtype, average ? ReduceOp::kSum : reduction.op, 1.0, 1.0, 1};
}

namespace {

class Ring {
 public:
  Ring(Schedule& schedule, const Team& team, const LinkedReduction& job)
      : schedule_(schedule),
        job_(job),
        size_(team.size()),
        me_(team.me),
        next_(team.members[static_cast<size_t>((team.me + 1) % team.size())]),
        last_(team.members[static_cast<size_t>((team.me + team.size() - 1) % team.size())]),
        item_(itemsize(job.reduction.dtype)) {}

  Ids build() {
    const int steps = job_.kept.empty() ? ring_steps(size_) : ring_scatter_steps(size_);
    Ids there;  // by piece, what has come last
    const auto begin_up_to = [&](size_t piece) {
      while (there.size() <= piece) there.push_back(begin(there.size()));
    };
    for (const RingMessage& message : ring_order(job_.pieces.size(), steps)) {
      begin_up_to(message.piece);
      const RingStep step = ring_step(size_, me_, message.step);
      Schedule::Id& piece_is_there = there[message.piece];
      const Range outgoing = elements(message.piece, step.send);
      const Range incoming = elements(message.piece, step.recv);
      if (!outgoing.empty()) send(message.piece, outgoing, piece_is_there);
      if (incoming.empty()) continue;
      piece_is_there = receive(message.piece, incoming, step.fold, piece_is_there);
      if (outgoing.empty()) passed_.push_back(piece_is_there);
      if (message.step == size_ - 2) piece_is_there = finish(message.piece, incoming, piece_is_there);
    }
    if (!job_.pieces.empty()) begin_up_to(job_.pieces.size() - 1);
    return there;
  }

 private:
  // A piece's input is brought to where it is reduced shortly before it is used, while it is in the cache: when the
  // last message but one before it has gone.
  Schedule::Id begin(size_t k) {
    const Piece& piece = job_.pieces[k];
    const Schedule::Id window = passed_.size() < 2 ? Schedule::kNone : passed_[passed_.size() - 2];
    const Schedule::Id begun = scale_in(schedule_, piece, job_.reduction, {job_.ready[k], window});
    // Nothing is sent, and nobody is the last to fold.
    return size_ == 1 ? scale_out(schedule_, size_, piece, job_.reduction, begun) : begun;
  }

  Range elements(size_t piece, int segment_index) const {
    if (job_.kept.empty()) return segment(job_.pieces[piece].count, size_, segment_index);
    return job_.kept[piece][static_cast<size_t>(ring_keeper(size_, segment_index))];
  }

  std::byte* at(size_t piece, const Range& range) const { return job_.pieces[piece].dst + range.begin * item_; }

  // What is passed on has come in the step before.
  void send(size_t piece, const Range& range, Schedule::Id after) {
    passed_.push_back(schedule_.send(next_, at(piece, range), range.count() * item_, after));
  }

  Schedule::Id receive(size_t piece, const Range& range, bool folds, Schedule::Id after) {
    std::byte* const to = at(piece, range);
    const size_t nbytes = range.count() * item_;
    return folds ? schedule_.fold(last_, to, nbytes, bare(job_.reduction), after)
                 : schedule_.receive(last_, to, nbytes, after);
  }

  // The segment has met every rank here, and goes round as it is from now on.
  Schedule::Id finish(size_t piece, const Range& range, Schedule::Id after) {
    std::byte* const data = at(piece, range);
    return scale_out(schedule_, size_, {data, data, range.count()}, job_.reduction, after);
  }

  Schedule& schedule_;
  const LinkedReduction& job_;
  const int size_;
  const int me_;
  const int next_;
  const int last_;
  const size_t item_;
  Ids passed_;  // messages sent, or, where none is in a step, received
};

}  // namespace

Ids ring(Schedule& schedule, const Team& team, const LinkedReduction& job) { return Ring(schedule, team, job).build(); }

}  // namespace rr
