// Every piece is cut into one segment a member. A member sends every other one the segment that it owns, folds the n
// inputs of its own segment in the order of the members, and sends the result to all. Example, 3 members: in the k-th
// round everybody sends to the k-th next one and hears from the k-th last, so no receiver is sent more at once than its
// link takes, as on a ring; but a segment takes two hops instead of 2(n-1), and the order of its sum does not depend on
// which it is.
//
// Pieces overlap: kLag inputs go ahead of each result, so that links have something to carry while segments
// arrive and are folded. The order of the messages is fixed (plan.h), so none has to say what it is.
//
// Cost: 2 alpha + 2(n-1)/n S beta + S gamma. Rabenseifner's reduce-scatter and all-gather (Optimization of collective
// reduction operations, ICCS 2004) with the pairwise exchange of Thakur, Rabenseifner and Gropp, "Optimization of
// collective communication operations in MPICH", IJHPCA 19 (2005).

#include "collective/pairwise.h"

namespace rr {
namespace {
constexpr size_t kLine = 64;
constexpr size_t kLag = 3;
// Inputs that have come and are not folded yet: those that may be ahead of a result, and the one that goes with it.
constexpr size_t kWindow = kLag + 1;
}  // namespace

std::vector<Range> cut_for_pairwise(size_t count, size_t item, size_t members, size_t chunk_nbytes) {
  const size_t pieces = std::max<size_t>(1, divide_up(count * item, chunk_nbytes * members));
  std::vector<Range> cut;
  for (size_t i = 0; i < pieces; ++i) {
    cut.push_back(segment(count, static_cast<int>(pieces), static_cast<int>(i), kLine / item));
  }
  return cut;
}

Pairwise::Pairwise(Team team, PairwiseJob job)
    : team_(std::move(team)),
      job_(std::move(job)),
      item_(itemsize(job_.reduction.dtype)),
      lane_(0),
      allowed_(job_.pieces.size()) {
  for (size_t k = 0; k < pieces(); ++k) lane_ = std::max(lane_, round_up(owned(k, 0).count() * item_, kLine));
  const size_t n = static_cast<size_t>(team_.size());
  inputs_.reset(new std::byte[std::max<size_t>(1, lane_ * n * std::min(kWindow, pieces()))]);
  for (int distance = 1; distance < team_.size(); ++distance) {
    const int member = (team_.me + distance) % team_.size();
    edges_.push_back({member, team_.links[static_cast<size_t>(team_.members[static_cast<size_t>(member)])], {}, {}});
  }
}

Range Pairwise::owned(size_t piece, int member) const {
  return segment(job_.pieces[piece].count, team_.size(), member, kLine / item_);
}

std::byte* Pairwise::received(size_t piece, int member) {
  return inputs_.get() + (piece % kWindow * static_cast<size_t>(team_.size()) + static_cast<size_t>(member)) * lane_;
}

size_t Pairwise::finished() const {
  size_t least = folded_;
  for (const Edge& edge : edges_) least = std::min(least, edge.in.results);
  return least;
}

Step Pairwise::step() {
  bool moved = false;
  for (Edge& edge : edges_) moved |= send(edge);
  for (auto edge = edges_.rbegin(); edge != edges_.rend(); ++edge) moved |= receive(*edge);
  moved |= fold();
  const auto is_through = [&](const Edge& edge) { return edge.out.results == pieces() && edge.in.results == pieces(); };
  if (folded_ == pieces() && std::all_of(edges_.begin(), edges_.end(), is_through)) return Step::kDone;
  return moved ? Step::kProgress : Step::kIdle;
}

bool Pairwise::needs(int rank) const {
  for (const Edge& edge : edges_) {
    if (team_.members[static_cast<size_t>(edge.member)] != rank) continue;
    return edge.out.results != pieces() || edge.in.results != pieces();
  }
  return false;
}

// Notes what has moved of the message; true when that was all of it.
bool Pairwise::pass(Way& way, size_t nbytes, size_t moved) {
  way.offset += moved;
  if (way.offset != nbytes) return false;
  const PipelineTurn message = pipeline_turn(pieces(), kLag, way.next);
  ++(message.is_second ? way.results : way.inputs);
  ++way.next;
  way.offset = 0;
  return true;
}

// At most one message each call, so that all edges get their turn.
bool Pairwise::send(Edge& edge) {
  Way& way = edge.out;
  if (way.next == 2 * pieces()) return false;
  const auto [piece, is_result] = pipeline_turn(pieces(), kLag, way.next);
  if (piece >= (is_result ? folded_ : allowed_)) return false;
  const Range range = owned(piece, is_result ? team_.me : edge.member);
  const std::byte* const from = is_result ? job_.pieces[piece].dst : job_.pieces[piece].src;
  const size_t nbytes = range.count() * item_;
  const size_t left = nbytes - way.offset;
  const size_t pushed = left == 0 ? 0 : edge.link->push(from + range.begin * item_ + way.offset, left);
  return pass(way, nbytes, pushed) || pushed != 0;
}

bool Pairwise::receive(Edge& edge) {
  Way& way = edge.in;
  if (way.next == 2 * pieces()) return false;
  const auto [piece, is_result] = pipeline_turn(pieces(), kLag, way.next);
  if (!is_result && piece >= folded_ + kWindow) return false;
  const Range range = owned(piece, is_result ? edge.member : team_.me);
  std::byte* const to = is_result ? job_.pieces[piece].dst + range.begin * item_ : received(piece, edge.member);
  const size_t nbytes = range.count() * item_;
  const size_t left = nbytes - way.offset;
  const size_t pulled = left == 0 ? 0 : edge.link->pull(to + way.offset, left);
  return pass(way, nbytes, pulled) || pulled != 0;
}

bool Pairwise::fold() {
  if (folded_ == allowed_) return false;
  for (const Edge& edge : edges_) {
    if (edge.in.inputs <= folded_) return false;
  }
  const Piece& piece = job_.pieces[folded_];
  const Range mine = owned(folded_, team_.me);
  std::vector<const void*> srcs;
  for (int member = 0; member < team_.size(); ++member) {
    srcs.push_back(member == team_.me ? piece.src + mine.begin * item_ : received(folded_, member));
  }
  void* dst = piece.dst + mine.begin * item_;
  if (!mine.empty()) team_.kernels->reduce(job_.reduction, srcs.data(), srcs.size(), &dst, 1, mine.count());
  ++folded_;
  return true;
}

}  // namespace rr
