// Parts of larger algorithms that touch this rank's memory only.

#include <cstring>

#include "collective/linked.h"

namespace rr {
namespace {

constexpr size_t kUnit = 256 << 10;  // bytes of a step

class Copies final : public Algorithm {
 public:
  explicit Copies(std::vector<CopyJob> jobs) : jobs_(std::move(jobs)) {}

  Step step() override {
    while (at_ < jobs_.size() && done_ == jobs_[at_].nbytes) {
      ++at_;
      done_ = 0;
    }
    if (at_ == jobs_.size()) return Step::kDone;
    const CopyJob& job = jobs_[at_];
    const size_t n = std::min(kUnit, job.nbytes - done_);
    if (job.dst != job.src) std::memcpy(job.dst + done_, job.src + done_, n);
    done_ += n;
    return Step::kProgress;
  }

  bool needs(int) const override { return false; }

 private:
  std::vector<CopyJob> jobs_;
  size_t at_ = 0;
  size_t done_ = 0;
};

class Fold final : public Algorithm {
 public:
  Fold(const Kernels& kernels, Reduction reduction, std::vector<const std::byte*> srcs, std::byte* dst, size_t count)
      : kernels_(kernels), reduction_(reduction), srcs_(std::move(srcs)), dst_(dst), count_(count) {}

  Step step() override {
    const size_t item = itemsize(reduction_.dtype);
    const size_t n = std::min(kUnit / item, count_ - done_);
    if (n == 0) return Step::kDone;
    std::vector<const void*> srcs;
    for (const std::byte* src : srcs_) srcs.push_back(src + done_ * item);
    void* dst = dst_ + done_ * item;
    kernels_.reduce(reduction_, srcs.data(), srcs.size(), &dst, 1, n);
    done_ += n;
    return done_ == count_ ? Step::kDone : Step::kProgress;
  }

  bool needs(int) const override { return false; }

 private:
  const Kernels& kernels_;
  Reduction reduction_;
  std::vector<const std::byte*> srcs_;
  std::byte* dst_;
  size_t count_;
  size_t done_ = 0;
};

class Holding final : public Algorithm {
 public:
  Holding(std::vector<std::unique_ptr<std::byte[]>> memory, std::unique_ptr<Algorithm> inner)
      : memory_(std::move(memory)), inner_(std::move(inner)) {}
  Step step() override { return inner_->step(); }
  bool needs(int rank) const override { return inner_->needs(rank); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::unique_ptr<Algorithm> inner_;
};

}  // namespace

std::unique_ptr<Algorithm> copies(std::vector<CopyJob> jobs) { return std::make_unique<Copies>(std::move(jobs)); }

std::unique_ptr<Algorithm> fold(const Kernels& kernels, Reduction reduction, std::vector<const std::byte*> srcs,
                                std::byte* dst, size_t count) {
  return std::make_unique<Fold>(kernels, reduction, std::move(srcs), dst, count);
}

std::unique_ptr<Algorithm> holding(std::vector<std::unique_ptr<std::byte[]>> memory, std::unique_ptr<Algorithm> inner) {
  return std::make_unique<Holding>(std::move(memory), std::move(inner));
}

}  // namespace rr
