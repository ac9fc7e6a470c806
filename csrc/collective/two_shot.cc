// Two-shot on private memory: each rank stages the parts it does not own, the owner of a segment folds the N inputs in
// rank order (its own straight from private memory) and publishes the result, the others copy it out. The order of the
// sum does not depend on who is early, so all ranks and all runs get the same bits.
//
// Cost per rank for S bytes on N ranks: staged S(N-1)/N in and S(N-1)/N out, folded S; a chunk stays in the L2 cache
// between its three stages, so memory traffic is close to one read and one write of the private buffer.

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "collective/staged.h"

namespace rr {
namespace {

constexpr size_t kScratchNbytes = 8 << 10;

// kReduceScatter: a slot has a block for each member that owns anything.
size_t nbytes_of_block(const ReduceJob& job, const Stage& stage) {
  const auto owners =
      std::count_if(job.owned.begin(), job.owned.end(), [](const Range& range) { return !range.empty(); });
  return stage.slot_nbytes / static_cast<size_t>(std::max<ptrdiff_t>(owners, 1)) / kCacheLine * kCacheLine;
}

class TwoShot final : public Staged {
 public:
  TwoShot(Team team, ReduceJob job, size_t rounds)
      : Staged(std::move(team), rounds, round_nbytes(job), true),
        job_(std::move(job)),
        item_(itemsize(job_.reduction.dtype)),
        result_item_(job_.is_to_float ? sizeof(float) : item_) {
    srcs_.resize(static_cast<size_t>(team_.size()));
    if (job_.shape != ReduceShape::kReduceScatter) return;
    block_nbytes_ = nbytes_of_block(job_, team_.stage);
    size_t block = 0;
    for (const Range& range : job_.owned) blocks_.push_back(range.empty() ? 0 : block++);
  }

 private:
  struct Part {
    Range range;         // elements of the job
    size_t slot_offset;  // bytes
  };

  static size_t round_nbytes(const ReduceJob& job) {
    return job.shape == ReduceShape::kReduceScatter ? SIZE_MAX / 2 : job.element_count * itemsize(job.reduction.dtype);
  }

  // What member i owns of a round, and where in a slot it lies.
  Part part(size_t round, int i) const {
    if (job_.shape == ReduceShape::kReduceScatter) {
      const Range& owned = job_.owned[static_cast<size_t>(i)];
      return {chunk(owned, block_nbytes_ / item_, round), blocks_[static_cast<size_t>(i)] * block_nbytes_};
    }
    const Range whole = chunk({0, job_.element_count}, team_.stage.slot_nbytes / item_, round);
    const Range own = segment(whole.count(), team_.size(), i, kCacheLine / item_);
    return {{whole.begin + own.begin, whole.begin + own.end}, own.begin * item_};
  }

  void put(size_t round) override {
    std::byte* mine = slot(team_.me, round);
    for (int i = 0; i < team_.size(); ++i) {
      if (i == team_.me && !on_device()) continue;
      const Part p = part(round, i);
      for_each_part(job_.pieces, p.range, [&](const Piece& piece, size_t offset, size_t n, size_t position) {
        copy_in(mine + p.slot_offset + (position - p.range.begin) * item_, piece.src + offset * item_, n * item_,
                index(piece));
      });
    }
  }

  void fold(size_t round) override {
    const Part p = part(round, team_.me);
    if (on_device()) return fold_in_slot(round, p);
    for_each_part(job_.pieces, p.range, [&](const Piece& piece, size_t offset, size_t n, size_t position) {
      const size_t at = p.slot_offset + (position - p.range.begin) * item_;
      in_slot(slot(team_.me, round) + at, n * item_, [&](size_t begin, size_t nbytes, bool streams) {
        const size_t done = begin / item_;
        fold_part(round, piece, offset + done, nbytes / item_, position + done, at + begin, streams);
      });
    });
  }

  // at: where it lies in a slot.
  void fold_part(size_t round, const Piece& piece, size_t offset, size_t n, size_t position, size_t at, bool streams) {
    const bool publish = job_.shape != ReduceShape::kReduceScatter;
    const bool keep = job_.shape != ReduceShape::kReduce || team_.me == job_.root;
    for (int i = 0; i < team_.size(); ++i) srcs_[static_cast<size_t>(i)] = slot(i, round) + at;
    srcs_[static_cast<size_t>(team_.me)] = piece.src + offset * item_;
    std::byte* const kept =
        keep ? piece.dst + (publish ? offset : position - job_.owned[me()].begin) * result_item_ : nullptr;
    std::byte* const published = publish ? slot(team_.me, round) + at : nullptr;
    if (job_.is_to_float) {
      team_.kernels->reduce_to_float(job_.reduction, srcs_.data(), srcs_.size(), kept, n);
    } else if (publish && streams) {
      fold_and_stream(kept, published, n);
    } else {
      fold_into(kept, published, n);
    }
  }

  void fold_in_slot(size_t round, const Part& p) {
    for (int i = 0; i < team_.size(); ++i) srcs_[static_cast<size_t>(i)] = slot(i, round) + p.slot_offset;
    void* dst = slot(team_.me, round) + p.slot_offset;
    if (!p.range.empty()) {
      team_.kernels->reduce(job_.reduction, srcs_.data(), srcs_.size(), &dst, 1, p.range.count());
    }
  }

  void fold_into(std::byte* kept, std::byte* published, size_t n) {
    void* dsts[2];
    size_t ndst = 0;
    if (kept != nullptr) dsts[ndst++] = kept;
    if (published != nullptr) dsts[ndst++] = published;
    team_.kernels->reduce(job_.reduction, srcs_.data(), srcs_.size(), dsts, ndst, n);
  }

  // By parts that are still in the L1 cache when they are copied.
  void fold_and_stream(std::byte* kept, std::byte* published, size_t n) {
    alignas(kCacheLine) std::byte scratch[kScratchNbytes];
    const size_t most = kScratchNbytes / item_;
    for (size_t done = 0; done < n; done += most) {
      const size_t count = std::min(most, n - done);
      std::byte* const result = kept != nullptr ? kept + done * item_ : scratch;
      fold_into(result, nullptr, count);
      write(published + done * item_, result, count * item_, true);
      for (const void*& src : srcs_) src = static_cast<const std::byte*>(src) + count * item_;
    }
  }

  void take(size_t round) override {
    const bool scatters = job_.shape == ReduceShape::kReduceScatter;
    if (job_.shape == ReduceShape::kReduce && team_.me != job_.root) return;
    for (int i = 0; i < team_.size(); ++i) {
      // In host memory the fold has kept this rank's own part.
      if (i == team_.me ? !on_device() : scatters) continue;
      const Part p = part(round, i);
      const std::byte* theirs = slot(i, round);
      for_each_part(job_.pieces, p.range, [&](const Piece& piece, size_t offset, size_t n, size_t position) {
        const size_t at = scatters ? position - job_.owned[me()].begin : offset;
        copy_out(piece.dst + at * item_, theirs + p.slot_offset + (position - p.range.begin) * item_, n * item_,
                 index(piece));
      });
    }
  }

  size_t me() const { return static_cast<size_t>(team_.me); }
  size_t index(const Piece& piece) const { return static_cast<size_t>(&piece - job_.pieces.data()); }

  ReduceJob job_;
  size_t item_;
  size_t result_item_;
  std::vector<const void*> srcs_;
  size_t block_nbytes_ = 0;     // kReduceScatter
  std::vector<size_t> blocks_;  // by member: which block of a slot is its own
};

}  // namespace

size_t rounds_of(const ReduceJob& job, const Stage& stage) {
  const size_t item = itemsize(job.reduction.dtype);
  if (job.shape != ReduceShape::kReduceScatter) return divide_up(job.element_count, stage.slot_nbytes / item);
  size_t largest = 0;
  for (const Range& range : job.owned) largest = std::max(largest, range.count());
  return divide_up(largest, nbytes_of_block(job, stage) / item);
}

std::unique_ptr<Algorithm> two_shot(Team team, ReduceJob job) {
  const size_t rounds = rounds_of(job, team.stage);
  return std::make_unique<TwoShot>(std::move(team), std::move(job), rounds);
}

}  // namespace rr
