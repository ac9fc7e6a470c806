// Recursive doubling over links: log2 N exchanges of the whole tensor, for messages whose latency counts.
// Cost: ceil(log2 N) (alpha + S (beta + gamma)), two more for N not a power of two. Source: Thakur, Rabenseifner and
// Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005). Min and Max of zeros of two
// signs, and a sum of two NaNs, depend on the order of their operands. So both partners of an exchange put the lower
// virtual rank's elements first, and compute the same bits.

#include <cstring>

#include "collective/linked.h"

namespace rr {
namespace {

class RecursiveDoubling final : public Algorithm {
 public:
  RecursiveDoubling(Team team, std::vector<Piece> pieces, Reduction reduction)
      : team_(std::move(team)),
        pieces_(std::move(pieces)),
        reduction_(reduction),
        item_(itemsize(reduction.dtype)),
        plan_(team_.size()) {
    if (!pieces_.empty()) build_moves();
  }

  Step step() override {
    if (piece_ == pieces_.size()) return Step::kDone;
    const Piece& piece = pieces_[piece_];
    const size_t nbytes = piece.count * item_;
    if (!begun_) {
      scale_in(team_, piece, reduction_);
      begun_ = true;
      start(0, piece);
      return Step::kProgress;
    }
    if (move_ == moves_.size()) {
      scale_out(team_, piece, reduction_);
      begun_ = false;
      ++piece_;
      return piece_ == pieces_.size() ? Step::kDone : Step::kProgress;
    }
    const Move& now = moves_[move_];
    Link& link = *team_.links[static_cast<size_t>(team_.members[static_cast<size_t>(now.peer)])];
    size_t moved = 0;
    if (now.sends && sent_ < nbytes) {
      const size_t n = link.push(scratch_.get() + sent_, nbytes - sent_);
      sent_ += n;
      moved += n;
    }
    if (now.receives && received_ < nbytes) {
      std::byte* at = (now.is_first ? incoming_.get() : piece.dst) + received_;
      const size_t n = now.folds ? link.fold(at, nbytes - received_, bare(reduction_), *team_.kernels)
                                 : link.pull(at, nbytes - received_);
      received_ += n;
      moved += n;
    }
    if ((!now.sends || sent_ == nbytes) && (!now.receives || received_ == nbytes)) {
      if (now.is_first) {
        const void* inputs[2] = {incoming_.get(), piece.dst};
        void* at = piece.dst;
        team_.kernels->reduce(bare(reduction_), inputs, 2, &at, 1, piece.count);
      }
      start(move_ + 1, piece);
      return Step::kProgress;
    }
    return moved != 0 ? Step::kProgress : Step::kIdle;
  }

  bool needs(int rank) const override {
    if (piece_ == pieces_.size()) return false;
    for (const Move& move : moves_) {
      if (team_.members[static_cast<size_t>(move.peer)] == rank) return true;
    }
    return false;
  }

 private:
  struct Move {
    int peer;
    bool sends;
    bool receives;
    bool folds;
    bool is_first = false;  // what the peer sends is the first operand: folded once it is all here
  };

  void build_moves() {
    const int v = plan_.virtual_rank(team_.me);
    const bool paired = team_.me < 2 * plan_.remainder;
    if (paired && v < 0) {
      moves_ = {{team_.me + 1, true, false, false}, {team_.me + 1, false, true, false}};
      return;
    }
    if (paired) moves_.push_back({team_.me - 1, false, true, true});
    for (int distance = 1; distance < plan_.power; distance *= 2) {
      const bool is_first = (v & distance) != 0;
      moves_.push_back({plan_.real_rank(v ^ distance), true, true, !is_first, is_first});
    }
    if (paired) moves_.push_back({team_.me - 1, true, false, false});
  }

  size_t most_nbytes() const {
    size_t most = 0;
    for (const Piece& piece : pieces_) most = std::max(most, piece.count * item_);
    return most;
  }

  // The push reads a copy, because the fold changes the tensor while it is on its way out.
  void start(size_t move, const Piece& piece) {
    move_ = move;
    sent_ = received_ = 0;
    if (move_ == moves_.size() || !moves_[move_].sends) return;
    if (scratch_ == nullptr) scratch_ = take_scratch(most_nbytes());
    if (moves_[move].is_first && incoming_ == nullptr) incoming_ = take_scratch(most_nbytes());
    if (piece.count != 0) std::memcpy(scratch_.get(), piece.dst, piece.count * item_);
  }

  Team team_;
  std::vector<Piece> pieces_;
  Reduction reduction_;
  size_t item_;
  Doubling plan_;
  std::vector<Move> moves_;
  size_t piece_ = 0;
  bool begun_ = false;
  size_t move_ = 0;
  size_t sent_ = 0;
  size_t received_ = 0;
  HostScratch scratch_;   // what goes out
  HostScratch incoming_;  // what comes in, where it is the first operand
};

}  // namespace

std::unique_ptr<Algorithm> recursive_doubling(Team team, std::vector<Piece> pieces, Reduction reduction) {
  return std::make_unique<RecursiveDoubling>(std::move(team), std::move(pieces), reduction);
}

}  // namespace rr
