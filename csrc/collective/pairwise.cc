// Every piece is cut into one segment a member. A member sends every other one the segment that it owns, folds the n
// inputs of its own segment in the order of the members, and sends the result to all; reduce-scatter ends before that.
// Example, 3 members: in the k-th
// round everybody sends to the k-th next one and hears from the k-th last, so no receiver is sent more at once than its
// link takes, as on a ring; but a segment takes two hops instead of 2(n-1), and the order of its sum does not depend on
// which it is.
//
// Pieces overlap: kLag inputs go ahead of each result, so that links have something to carry while segments arrive and
// are folded. The order of the messages is fixed (plan.h), so none has to say what it is.
//
// Cost: 2 alpha + 2(n-1)/n S beta + S gamma, of reduce-scatter half of alpha's and beta's. Rabenseifner's
// reduce-scatter and all-gather (Optimization of collective reduction operations, ICCS 2004) with the pairwise exchange
// of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005).

#include <cstring>

#include "collective/linked.h"

namespace rr {
namespace {
constexpr size_t kLag = 3;
// Inputs that have come and are not folded yet: those that may be ahead of a result, and the one that goes with it.
constexpr size_t kWindow = kLag + 1;

class Pairwise final : public Piecewise {
 public:
  Pairwise(Team team, std::vector<Piece> pieces, Reduction reduction, Codec codec, Kept kept, Codec result);

  void allow(size_t pieces) override { allowed_ = std::min(pieces, pieces_.size()); }
  size_t finished() const override;

  Step step() override;
  bool needs(int rank) const override;

 private:
  // One direction of an edge: which message is next, and what of it is left.
  struct Way {
    size_t next = 0;    // of the schedule
    size_t offset = 0;  // bytes
    size_t inputs = 0;  // messages of each kind that are through
    size_t results = 0;
    size_t encoded = SIZE_MAX;  // the message that encoded_out has
  };
  struct Edge {
    int member;
    Link* link;
    Way out;
    Way in;
    HostScratch encoded_out;  // the message under way, where there is a codec
    HostScratch encoded_in;
  };

  bool is_encoded() const { return codec_ != Codec::kNone; }
  bool narrows() const { return result_ != Codec::kNone; }
  bool decodes_results() const { return is_encoded() && !narrows() && !scatters(); }
  // Of a message.
  size_t nbytes(size_t count, bool is_result) const {
    if (is_result && narrows()) return codec_nbytes(result_, count);
    return is_encoded() ? codec_nbytes(codec_, count) : count * item_;
  }
  std::byte* result_at(size_t piece, const Range& range) const {
    return pieces_[piece].dst + (narrows() ? codec_nbytes(result_, range.begin) : range.begin * item_);
  }
  size_t pieces() const { return pieces_.size(); }
  bool scatters() const { return !kept_.empty(); }
  size_t messages() const { return scatters() ? pieces() : 2 * pieces(); }  // each way of an edge
  PipelineTurn message(size_t index) const {
    return scatters() ? PipelineTurn{index, false} : pipeline_turn(pieces(), kLag, index);
  }
  Range owned(size_t piece, int member) const;
  std::byte* received(size_t piece, int member);
  const std::byte* input(size_t piece, int member, Range range);
  std::byte* encoded_result(size_t piece) { return results_.get() + piece % kWindow * segment_nbytes_; }
  bool send(Edge& edge);
  bool receive(Edge& edge);
  bool pass(Way& way, size_t nbytes, size_t moved);
  bool fold();

  Team team_;
  std::vector<Piece> pieces_;
  Reduction reduction_;
  Codec codec_;
  Codec result_;
  Kept kept_;
  size_t item_;
  size_t segment_nbytes_;  // bytes: the largest segment of a piece
  HostScratch inputs_;
  HostScratch decoded_;
  HostScratch results_;
  std::vector<Edge> edges_;
  size_t allowed_;
  size_t folded_ = 0;
};

Pairwise::Pairwise(Team team, std::vector<Piece> pieces, Reduction reduction, Codec codec, Kept kept, Codec result)
    : team_(std::move(team)),
      pieces_(std::move(pieces)),
      reduction_(reduction),
      codec_(team_.size() == 1 ? Codec::kNone : codec),
      result_(result),
      kept_(std::move(kept)),
      item_(itemsize(reduction.dtype)),
      segment_nbytes_(0),
      allowed_(pieces_.size()) {
  for (size_t k = 0; k < pieces_.size(); ++k) {
    for (int member = 0; member < team_.size(); ++member) {
      segment_nbytes_ = std::max(segment_nbytes_, round_up(owned(k, member).count() * item_, kCacheLine));
    }
  }
  const size_t n = static_cast<size_t>(team_.size());
  inputs_ = take_scratch(segment_nbytes_ * n * std::min(kWindow, pieces_.size()));
  if (is_encoded() || narrows()) decoded_ = take_scratch(segment_nbytes_ * n);
  if (decodes_results()) results_ = take_scratch(segment_nbytes_ * kWindow);
  for (int distance = 1; distance < team_.size(); ++distance) {
    const int member = (team_.me + distance) % team_.size();
    edges_.push_back(
        {member, team_.links[static_cast<size_t>(team_.members[static_cast<size_t>(member)])], {}, {}, {}, {}});
    if (is_encoded()) edges_.back().encoded_out = take_scratch(segment_nbytes_);
    if (decodes_results()) edges_.back().encoded_in = take_scratch(segment_nbytes_);
  }
}

Range Pairwise::owned(size_t piece, int member) const {
  if (scatters()) return kept_[piece][static_cast<size_t>(member)];
  return segment(pieces_[piece].count, team_.size(), member, alignment(codec_, item_));
}

std::byte* Pairwise::received(size_t piece, int member) {
  return inputs_.get() +
         (piece % kWindow * static_cast<size_t>(team_.size()) + static_cast<size_t>(member)) * segment_nbytes_;
}

size_t Pairwise::finished() const {
  size_t least = folded_;
  if (scatters()) return least;
  for (const Edge& edge : edges_) least = std::min(least, edge.in.results);
  return least;
}

Step Pairwise::step() {
  bool moved = false;
  for (Edge& edge : edges_) moved |= send(edge);
  for (auto edge = edges_.rbegin(); edge != edges_.rend(); ++edge) moved |= receive(*edge);
  moved |= fold();
  const auto is_through = [&](const Edge& edge) { return edge.out.next == messages() && edge.in.next == messages(); };
  if (folded_ == pieces() && std::all_of(edges_.begin(), edges_.end(), is_through)) return Step::kDone;
  return moved ? Step::kProgress : Step::kIdle;
}

bool Pairwise::needs(int rank) const {
  for (const Edge& edge : edges_) {
    if (team_.members[static_cast<size_t>(edge.member)] != rank) continue;
    return edge.out.next != messages() || edge.in.next != messages();
  }
  return false;
}

// Notes what has moved of the message; true when that was all of it.
bool Pairwise::pass(Way& way, size_t nbytes, size_t moved) {
  way.offset += moved;
  if (way.offset != nbytes) return false;
  ++(message(way.next).is_second ? way.results : way.inputs);
  ++way.next;
  way.offset = 0;
  return true;
}

// At most one message each call, so that all edges get their turn.
bool Pairwise::send(Edge& edge) {
  Way& way = edge.out;
  if (way.next == messages()) return false;
  const auto [piece, is_result] = message(way.next);
  if (piece >= (is_result ? folded_ : allowed_)) return false;
  const Range range = owned(piece, is_result ? team_.me : edge.member);
  const std::byte* from = is_result ? result_at(piece, range) : pieces_[piece].src + range.begin * item_;
  if (is_result && decodes_results()) {
    from = encoded_result(piece);
  } else if (!is_result && is_encoded()) {
    if (way.encoded != way.next) team_.kernels->encode(codec_, from, edge.encoded_out.get(), range.count());
    way.encoded = way.next;
    from = edge.encoded_out.get();
  }
  const size_t whole = nbytes(range.count(), is_result);
  const size_t left = whole - way.offset;
  const size_t pushed = left == 0 ? 0 : edge.link->push(from + way.offset, left);
  return pass(way, whole, pushed) || pushed != 0;
}

bool Pairwise::receive(Edge& edge) {
  Way& way = edge.in;
  if (way.next == messages()) return false;
  const auto [piece, is_result] = message(way.next);
  if (!is_result && piece >= folded_ + kWindow) return false;
  const Range range = owned(piece, is_result ? edge.member : team_.me);
  std::byte* const result = result_at(piece, range);
  std::byte* const to = !is_result ? received(piece, edge.member) : decodes_results() ? edge.encoded_in.get() : result;
  const size_t whole = nbytes(range.count(), is_result);
  const size_t left = whole - way.offset;
  const size_t pulled = left == 0 ? 0 : edge.link->pull(to + way.offset, left);
  if (!pass(way, whole, pulled)) return pulled != 0;
  if (is_result && decodes_results()) team_.kernels->decode(codec_, to, result, range.count());
  return true;
}

// This member's own is rounded like the others', so that a sum does not depend on who computes it.
const std::byte* Pairwise::input(size_t piece, int member, Range range) {
  const bool is_own = member == team_.me;
  const std::byte* const there = is_own ? pieces_[piece].src + range.begin * item_ : received(piece, member);
  if (!is_encoded()) return there;
  std::byte* const elements = decoded_.get() + static_cast<size_t>(member) * segment_nbytes_;
  if (is_own) {
    std::memcpy(elements, there, range.count() * item_);
    codec_round_trip(*team_.kernels, codec_, elements, range.count());
  } else {
    team_.kernels->decode(codec_, there, elements, range.count());
  }
  return elements;
}

bool Pairwise::fold() {
  if (folded_ == allowed_) return false;
  for (const Edge& edge : edges_) {
    if (edge.in.inputs <= folded_) return false;
    // Its place is not free yet.
    if (decodes_results() && edge.out.results + kWindow <= folded_) return false;
  }
  const Range mine = owned(folded_, team_.me);
  std::vector<const void*> srcs;
  for (int member = 0; member < team_.size(); ++member) {
    srcs.push_back(input(folded_, member, mine));
  }
  std::byte* const result = result_at(folded_, mine);
  void* dst = narrows() ? decoded_.get() + static_cast<size_t>(team_.me) * segment_nbytes_ : result;
  if (!mine.empty()) team_.kernels->reduce(reduction_, srcs.data(), srcs.size(), &dst, 1, mine.count());
  if (narrows()) team_.kernels->encode(result_, dst, result, mine.count());
  if (decodes_results()) {  // what the others will decode
    team_.kernels->encode(codec_, dst, encoded_result(folded_), mine.count());
    team_.kernels->decode(codec_, encoded_result(folded_), dst, mine.count());
  }
  ++folded_;
  return true;
}

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

std::unique_ptr<Piecewise> pairwise(Team team, std::vector<Piece> pieces, Reduction reduction, Codec codec, Kept kept,
                                    Codec result) {
  return std::make_unique<Pairwise>(std::move(team), std::move(pieces), reduction, codec, std::move(kept), result);
}

}  // namespace rr
