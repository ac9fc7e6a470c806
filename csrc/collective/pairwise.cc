// Every piece is cut into one segment a member. A member sends every other one the segment that it owns, folds the n
// inputs of its own segment in the order of the members, and sends the result to all; reduce-scatter ends before that.
// In the k-th round everybody sends to the k-th next one and hears from the k-th last, so no receiver is sent more at
// once than its link takes, as on a ring; but a segment takes two hops instead of 2(n-1), and the order of its sum does
// not depend on which it is.
//
// Pieces overlap: kLag inputs go ahead of each result, so that links have something to carry while segments arrive and
// are folded. The order of the messages is fixed (plan.h), so none has to say what it is.
//
// Cost: 2 alpha + 2(n-1)/n S beta + S gamma, of reduce-scatter half of alpha's and beta's. Rabenseifner's
// reduce-scatter and all-gather (Optimization of collective reduction operations, ICCS 2004) with the pairwise exchange
// of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005).

#include "collective/linked.h"

namespace rr {
namespace {

constexpr size_t kLag = 3;
// Inputs that have come and are not folded yet: those that may be ahead of a result, and the one that goes with it.
constexpr size_t kWindow = kLag + 1;

class Pairwise {
 public:
  Pairwise(Schedule& schedule, const Team& team, const LinkedReduction& job)
      : schedule_(schedule),
        team_(team),
        job_(job),
        codec_(team.size() == 1 ? Codec::kNone : job.codec),
        item_(itemsize(job.reduction.dtype)) {
    for (size_t k = 0; k < pieces(); ++k) {
      for (int member = 0; member < team.size(); ++member) {
        segment_nbytes_ = std::max(segment_nbytes_, round_up(owned(k, member).count() * item_, kCacheLine));
      }
    }
    const size_t n = static_cast<size_t>(team.size());
    inputs_ = schedule.memory(segment_nbytes_ * n * std::min(kWindow, pieces()));
    if (is_encoded() || narrows()) decoded_ = schedule.memory(segment_nbytes_ * n);
    if (decodes_results()) results_ = schedule.memory(segment_nbytes_ * kWindow);
    for (int distance = 1; distance < team.size(); ++distance) {
      Edge edge;
      edge.member = (team.me + distance) % team.size();
      edge.rank = team.members[static_cast<size_t>(edge.member)];
      if (is_encoded()) edge.encoded_out = schedule.memory(segment_nbytes_);
      if (decodes_results()) edge.encoded_in = schedule.memory(segment_nbytes_);
      edges_.push_back(edge);
    }
  }

  Ids build() {
    const size_t messages = scatters() ? pieces() : 2 * pieces();  // each way of an edge
    Ids there;
    for (size_t index = 0; index < messages; ++index) {
      const auto [k, is_result] = scatters() ? PipelineTurn{index, false} : pipeline_turn(pieces(), kLag, index);
      if (is_result) {
        there.push_back(pass_result(k));
      } else {
        folds_.push_back(fold(k, pass_input(k)));
      }
    }
    return scatters() ? folds_ : there;
  }

 private:
  struct Edge {
    int member = 0;
    int rank = 0;
    std::byte* encoded_out = nullptr;  // the message under way, where there is a codec
    std::byte* encoded_in = nullptr;
    Schedule::Id sent = Schedule::kNone;     // the last message
    Schedule::Id decoded = Schedule::kNone;  // the last result
    Ids results;                             // by piece: sent
  };

  bool is_encoded() const { return codec_ != Codec::kNone; }
  bool narrows() const { return job_.result != Codec::kNone; }
  bool decodes_results() const { return is_encoded() && !narrows() && !scatters(); }
  bool scatters() const { return !job_.kept.empty(); }
  size_t pieces() const { return job_.pieces.size(); }
  // Of a message.
  size_t nbytes(size_t count, bool is_result) const {
    if (is_result && narrows()) return codec_nbytes(job_.result, count);
    return is_encoded() ? codec_nbytes(codec_, count) : count * item_;
  }
  Range owned(size_t piece, int member) const {
    if (scatters()) return job_.kept[piece][static_cast<size_t>(member)];
    return segment(job_.pieces[piece].count, team_.size(), member, alignment(codec_, item_));
  }
  std::byte* result_at(size_t piece, const Range& range) const {
    return job_.pieces[piece].dst + (narrows() ? codec_nbytes(job_.result, range.begin) : range.begin * item_);
  }
  std::byte* received(size_t piece, int member) const {
    return inputs_ +
           (piece % kWindow * static_cast<size_t>(team_.size()) + static_cast<size_t>(member)) * segment_nbytes_;
  }
  std::byte* decoded(int member) const { return decoded_ + static_cast<size_t>(member) * segment_nbytes_; }
  std::byte* encoded_result(size_t piece) const { return results_ + piece % kWindow * segment_nbytes_; }

  // What frees the memory in which a piece's inputs arrive.
  Schedule::Id last_of_place(const Ids& ids, size_t piece) const {
    return piece < kWindow ? Schedule::kNone : ids[piece - kWindow];
  }

  // Gives the items after which the inputs are here, by edge.
  Ids pass_input(size_t k) {
    const Piece& piece = job_.pieces[k];
    Ids arrived;
    for (Edge& edge : edges_) {
      const Range theirs = owned(k, edge.member);
      const std::byte* from = piece.src + theirs.begin * item_;
      Schedule::Id ready = job_.ready[k];
      if (is_encoded()) {
        ready = schedule_.encode(codec_, from, edge.encoded_out, theirs.count(), {ready, edge.sent});
        from = edge.encoded_out;
      }
      edge.sent = schedule_.send(edge.rank, from, nbytes(theirs.count(), false), ready);
      arrived.push_back(schedule_.receive(edge.rank, received(k, edge.member),
                                          nbytes(owned(k, team_.me).count(), false), last_of_place(folds_, k)));
    }
    return arrived;
  }

  // This member's own is rounded like the others', so that a sum does not depend on who computes it.
  Schedule::Id fold(size_t k, const Ids& arrived) {
    const Piece& piece = job_.pieces[k];
    const Range mine = owned(k, team_.me);
    std::vector<const std::byte*> srcs(static_cast<size_t>(team_.size()));
    const std::byte* const own = piece.src + mine.begin * item_;
    srcs[static_cast<size_t>(team_.me)] = own;
    Ids after = arrived;
    after.push_back(job_.ready[k]);
    const Schedule::Id before = k == 0 ? Schedule::kNone : folds_.back();  // it reads what is decoded
    for (size_t i = 0; i < edges_.size(); ++i) {
      const Edge& edge = edges_[i];
      std::byte* const there = received(k, edge.member);
      srcs[static_cast<size_t>(edge.member)] = is_encoded() ? decoded(edge.member) : there;
      if (is_encoded())
        after[i] = schedule_.decode(codec_, there, decoded(edge.member), mine.count(), {arrived[i], before});
    }
    if (is_encoded()) {
      std::byte* const rounded = decoded(team_.me);
      const Schedule::Id copied = schedule_.copy(own, rounded, mine.count() * item_, {job_.ready[k], before});
      after.push_back(schedule_.round_trip(codec_, rounded, mine.count(), copied));
      srcs[static_cast<size_t>(team_.me)] = rounded;
    }
    std::byte* const result = result_at(k, mine);
    std::byte* const sum = narrows() ? decoded(team_.me) : result;
    if (narrows()) after.push_back(before);
    Schedule::Id folded = schedule_.reduce(srcs, sum, mine.count(), job_.reduction, after);
    if (narrows()) folded = schedule_.encode(job_.result, sum, result, mine.count(), folded);
    if (decodes_results()) {  // what the others will decode
      Ids place_is_free = {folded};
      for (const Edge& edge : edges_) place_is_free.push_back(last_of_place(edge.results, k));
      const Schedule::Id encoded = schedule_.encode(codec_, sum, encoded_result(k), mine.count(), place_is_free);
      folded = schedule_.decode(codec_, encoded_result(k), sum, mine.count(), encoded);
    }
    return folded;
  }

  // Gives the item after which all of the piece is here.
  Schedule::Id pass_result(size_t k) {
    Ids there = {folds_[k]};
    const Range mine = owned(k, team_.me);
    const std::byte* const from = decodes_results() ? encoded_result(k) : result_at(k, mine);
    for (Edge& edge : edges_) {
      if (!mine.empty()) edge.sent = schedule_.send(edge.rank, from, nbytes(mine.count(), true), folds_[k]);
      edge.results.push_back(edge.sent);
      const Range theirs = owned(k, edge.member);
      const size_t whole = nbytes(theirs.count(), true);
      std::byte* const to = result_at(k, theirs);
      if (decodes_results()) {
        const Schedule::Id taken = schedule_.receive(edge.rank, edge.encoded_in, whole, edge.decoded);
        edge.decoded = schedule_.decode(codec_, edge.encoded_in, to, theirs.count(), taken);
        there.push_back(edge.decoded);
      } else {
        there.push_back(schedule_.receive(edge.rank, to, whole, Schedule::kNone));
      }
    }
    return schedule_.joint(there);
  }

  Schedule& schedule_;
  const Team& team_;
  const LinkedReduction& job_;
  const Codec codec_;
  const size_t item_;
  size_t segment_nbytes_ = 0;  // the largest segment of a piece
  std::byte* inputs_ = nullptr;
  std::byte* decoded_ = nullptr;
  std::byte* results_ = nullptr;
  std::vector<Edge> edges_;
  Ids folds_;  // by piece
};

}  // namespace

size_t alignment(Codec codec, size_t item) { return codec == Codec::kNone ? kCacheLine / item : kCodecBlock; }

std::vector<Range> cut(size_t count, size_t item, size_t piece_nbytes, size_t align) {
  const int pieces = static_cast<int>(std::max<size_t>(1, divide_up(count * item, piece_nbytes)));
  std::vector<Range> ranges;
  for (int i = 0; i < pieces; ++i) ranges.push_back(segment(count, pieces, i, align));
  return ranges;
}

size_t pieces_under_way(bool rings, int members) {
  return rings ? static_cast<size_t>(std::max(0, ring_steps(members) - 1)) * kRingLag + 1 : kLag + 1;
}

Ids gathered(Schedule& schedule, const Team& team, const LinkedReduction& job) {
  Ids there;
  for (size_t k = 0; k < job.pieces.size(); ++k) {
    const Piece& piece = job.pieces[k];
    const size_t nbytes = piece.count * itemsize(job.reduction.dtype);
    std::vector<const std::byte*> srcs(static_cast<size_t>(team.size()), piece.src);
    Ids after = {job.ready[k]};
    for (int distance = 1; distance < team.size(); ++distance) {
      const size_t member = static_cast<size_t>((team.me + distance) % team.size());
      const int rank = team.members[member];
      std::byte* const theirs = schedule.memory(nbytes);
      after.push_back(schedule.send(rank, piece.src, nbytes, job.ready[k]));  // dst may be src
      after.push_back(schedule.receive(rank, theirs, nbytes, {}));
      srcs[member] = theirs;
    }
    there.push_back(schedule.reduce(srcs, piece.dst, piece.count, job.reduction, after));
  }
  return there;
}

Ids pairwise(Schedule& schedule, const Team& team, const LinkedReduction& job) {
  return Pairwise(schedule, team, job).build();
}

}  // namespace rr
