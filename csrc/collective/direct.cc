// Direct all-reduce: every rank's input and output is mapped by every rank, so whoever is here takes a chunk, loads it
// from N inputs, folds in rank order and stores to N outputs. Total traffic 2NS bytes for S bytes on N ranks, no copy.
//
// Chunks are claimed: each rank starts with its own share (the same addresses every call, which keeps its TLB and
// caches warm) and then helps the others, so a rank that the scheduler has put aside delays nobody, and a rank that
// slept through the operation wakes to a finished result.

#include "collective/direct.h"

namespace rr {
namespace {

constexpr size_t kLeastUnit = 16 << 10;     // bytes; below, claiming (about 0.1 us) would show
constexpr size_t kLargestUnit = 256 << 10;  // bytes; above, the last chunk keeps the others waiting
constexpr size_t kChunksPerRank = 4;

class Direct final : public Algorithm {
 public:
  Direct(Team team, SharedWork work, DirectJob job)
      : team_(std::move(team)), work_(work), job_(std::move(job)), item_(itemsize(job_.reduction.dtype)) {
    size_t total = 0;
    for (const auto& tensor : job_.tensors) total += tensor.count * item_;
    const size_t share = divide_up(total, static_cast<size_t>(team_.size()) * kChunksPerRank);
    unit_ = std::min(kLargestUnit, std::max(kLeastUnit, round_up(share, 4096))) / item_;
    for (const auto& tensor : job_.tensors) chunks_ += divide_up(tensor.count, unit_);
  }

  Step step() override {
    if (take_chunk()) {
      if (work_.completed->fetch_add(1, std::memory_order_acq_rel) + 1 == chunks_) team_.ring_others();
      return Step::kProgress;
    }
    return is_done() ? Step::kDone : Step::kIdle;
  }

  // Who leaves before the end takes its memory back, and ends the work of all.
  bool needs(int rank) const override {
    return !is_done() && std::find(team_.members.begin(), team_.members.end(), rank) != team_.members.end();
  }

 private:
  bool is_done() const { return work_.completed->load(std::memory_order_acquire) == chunks_; }

  // False when there is none left, or no more may be taken. Says that this rank stores before it looks whether it may:
  // who takes its memory back (Executor::withdraw_memory) says so before it looks who stores.
  bool take_chunk() {
    if (!has_unclaimed()) return false;  // whoever is at work on the last ones reads the line
    std::atomic<uint32_t>& storing = work_.claims[team_.rank()].storing;
    storing.store(1, std::memory_order_seq_cst);
    const Range claimed = is_withdrawn() ? Range{} : claim();
    if (!claimed.empty()) reduce_chunk(claimed.begin);
    storing.store(0, std::memory_order_release);
    return !claimed.empty();
  }

  bool is_withdrawn() const {
    if (work_.any_withdrawn->load(std::memory_order_seq_cst) == 0) return false;
    return std::any_of(team_.members.begin(), team_.members.end(),
                       [this](int r) { return work_.claims[r].withdrawn.load(std::memory_order_seq_cst) != 0; });
  }

  bool has_unclaimed() const {
    for (int i = 0; i < team_.size(); ++i) {
      const int owner = (team_.me + i) % team_.size();  // in most chunks this rank's own share is enough
      const uint64_t next =
          work_.claims[team_.members[static_cast<size_t>(owner)]].next.load(std::memory_order_relaxed);
      if (next < segment(chunks_, team_.size(), owner).count()) return true;
    }
    return false;
  }

  // An empty range when nothing is left to claim.
  Range claim() {
    for (int i = 0; i < team_.size(); ++i) {
      const int owner = (team_.me + i) % team_.size();
      const Range share = segment(chunks_, team_.size(), owner);
      std::atomic<uint64_t>& next = work_.claims[team_.members[static_cast<size_t>(owner)]].next;
      if (next.load(std::memory_order_relaxed) >= share.count()) continue;
      const size_t index = share.begin + next.fetch_add(1, std::memory_order_relaxed);
      if (index < share.end) return {index, index + 1};
    }
    return {};
  }

  void reduce_chunk(size_t index) {
    for (const auto& tensor : job_.tensors) {
      const size_t here = divide_up(tensor.count, unit_);
      if (index >= here) {
        index -= here;
        continue;
      }
      const Range range = chunk({0, tensor.count}, unit_, index);
      const size_t offset = range.begin * item_;
      srcs_ = tensor.srcs;
      dsts_ = tensor.dsts;
      for (auto& src : srcs_) src = static_cast<const std::byte*>(src) + offset;
      for (auto& dst : dsts_) dst = static_cast<std::byte*>(dst) + offset;
      team_.kernels->reduce(job_.reduction, srcs_.data(), srcs_.size(), dsts_.data(), dsts_.size(), range.count());
      return;
    }
  }

  Team team_;
  SharedWork work_;
  DirectJob job_;
  size_t item_;
  size_t unit_ = 1;  // elements
  size_t chunks_ = 0;
  std::vector<const void*> srcs_;
  std::vector<void*> dsts_;
};

}  // namespace

std::unique_ptr<Algorithm> direct(Team team, SharedWork work, DirectJob job) {
  return std::make_unique<Direct>(std::move(team), work, std::move(job));
}

}  // namespace rr
