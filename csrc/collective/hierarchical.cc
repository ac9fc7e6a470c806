#include "collective/hierarchical.h"

namespace rr {
namespace {

class Hierarchical final : public Algorithm {
 public:
  Hierarchical(std::vector<HostPart> parts, std::unique_ptr<Pairwise> across)
      : parts_(std::move(parts)), across_(std::move(across)), is_across_(across_ != nullptr) {
    if (is_across_ && !parts_.empty()) across_->allow(0);
  }

  Step step() override {
    const bool moved_here = step_here();
    const bool moved_across = step_across();
    if (at_ == parts_.size() && !is_across_) return Step::kDone;
    return moved_here || moved_across ? Step::kProgress : Step::kIdle;
  }

  bool needs(int rank) const override {
    for (size_t i = at_; i < parts_.size(); ++i) {
      if (parts_[i].algorithm->needs(rank)) return true;
    }
    return is_across_ && across_->needs(rank);
  }

 private:
  bool step_here() {
    if (at_ == parts_.size()) return false;
    HostPart& part = parts_[at_];
    if (part.is_gather && across_ != nullptr && across_->finished() <= part.piece) return false;
    const Step step = part.algorithm->step();
    if (step == Step::kDone) {
      if (!part.is_gather && across_ != nullptr) across_->allow(part.piece + 1);
      part.algorithm.reset();
      ++at_;
    }
    return step != Step::kIdle;
  }

  bool step_across() {
    if (!is_across_) return false;
    const Step step = across_->step();
    is_across_ = step != Step::kDone;
    return step != Step::kIdle;
  }

  std::vector<HostPart> parts_;
  size_t at_ = 0;
  std::unique_ptr<Pairwise> across_;
  bool is_across_;  // not through yet
};

}  // namespace

std::unique_ptr<Algorithm> hierarchical(std::vector<HostPart> parts, std::unique_ptr<Pairwise> across) {
  return std::make_unique<Hierarchical>(std::move(parts), std::move(across));
}

}  // namespace rr
