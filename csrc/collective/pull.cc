// reducescatter, allgather, gather, broadcast and alltoall over registered memory. An operation is in the log only when
// every rank has announced it, so all inputs are ready when it starts; then each output byte is loaded once from where
// it was written (from N places for a reduction) and stored once: S bytes loaded and stored a rank for an allgather,
// broadcast or alltoall of S bytes, S loaded and S/N stored for a reducescatter. Staging would add a copy.

#include "collective/pull.h"

#include <cstring>

#include "data/stream.h"

namespace rr {
namespace {

constexpr size_t kUnit = 256 << 10;  // bytes of a step

class Local final : public Algorithm {
 public:
  Local(const Kernels& kernels, PullJob job)
      : kernels_(kernels), job_(std::move(job)), item_(itemsize(job_.reduction.dtype)) {
    size_t total = 0;
    for (const PullJob::Part& part : job_.parts) total += part.count * item_;
    streams_ = total >= kStreamedNbytes;
  }

  Step step() override {
    while (part_ < job_.parts.size() && done_ == job_.parts[part_].count) {
      ++part_;
      done_ = 0;
    }
    if (part_ == job_.parts.size()) return Step::kDone;
    take(job_.parts[part_]);
    return Step::kProgress;
  }

  bool needs(int) const override { return false; }

 private:
  void take(const PullJob::Part& part) {
    const size_t n = std::min(part.count - done_, kUnit / item_);
    const size_t offset = done_ * item_;
    done_ += n;
    if (!part.folds) {
      if (part.srcs[0] == part.dst) return;
      (streams_ ? stream(part.dst + offset, part.srcs[0] + offset, n * item_)
                : void(std::memcpy(part.dst + offset, part.srcs[0] + offset, n * item_)));
      return;
    }
    srcs_.clear();
    for (const std::byte* src : part.srcs) srcs_.push_back(src + offset);
    void* dst = part.dst + offset;
    kernels_.reduce(job_.reduction, srcs_.data(), srcs_.size(), &dst, 1, n);
  }

  const Kernels& kernels_;
  PullJob job_;
  size_t item_;
  size_t part_ = 0;
  size_t done_ = 0;  // elements of the part
  bool streams_ = false;
  std::vector<const void*> srcs_;
};

class Pull final : public Algorithm {
 public:
  Pull(Team team, SharedWork work, PullJob job)
      : team_(std::move(team)), completed_(*work.completed), taking_(*team_.kernels, std::move(job)) {}

  Step step() override {
    if (!counted_ && taking_.step() != Step::kDone) return Step::kProgress;
    const uint64_t everybody = static_cast<uint64_t>(team_.size());
    if (!counted_) {
      counted_ = true;
      if (completed_.fetch_add(1, std::memory_order_acq_rel) + 1 == everybody) team_.ring_others();
    }
    return completed_.load(std::memory_order_acquire) == everybody ? Step::kDone : Step::kIdle;
  }

  bool needs(int) const override {
    return completed_.load(std::memory_order_acquire) != static_cast<uint64_t>(team_.size());
  }

 private:
  Team team_;
  std::atomic<uint64_t>& completed_;
  Local taking_;
  bool counted_ = false;
};

}  // namespace

std::unique_ptr<Algorithm> local(const Kernels& kernels, PullJob job) {
  return std::make_unique<Local>(kernels, std::move(job));
}

std::unique_ptr<Algorithm> pull(Team team, SharedWork work, PullJob job) {
  return std::make_unique<Pull>(std::move(team), work, std::move(job));
}

}  // namespace rr
