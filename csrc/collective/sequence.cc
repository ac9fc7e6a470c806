// Several algorithms as one.

#include "collective/algorithm.h"

#include <utility>

namespace rr {
namespace {

class Sequence final : public Algorithm {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Algorithm>> parts) : parts_(std::move(parts)) {}

  Step step() override {
    if (at_ == parts_.size()) return Step::kDone;
    const Step step = parts_[at_]->step();
    if (step != Step::kDone) return step;
    return ++at_ == parts_.size() ? Step::kDone : Step::kProgress;
  }

  bool needs(int rank) const override {
    for (size_t i = at_; i < parts_.size(); ++i) {
      if (parts_[i]->needs(rank)) return true;
    }
    return false;
  }

 private:
  std::vector<std::unique_ptr<Algorithm>> parts_;
  size_t at_ = 0;
};

class Once final : public Algorithm {
 public:
  explicit Once(std::function<void()> action) : action_(std::move(action)) {}

  Step step() override {
    if (action_ != nullptr) std::exchange(action_, nullptr)();
    return Step::kDone;
  }

  bool needs(int) const override { return false; }

 private:
  std::function<void()> action_;
};

}  // namespace

std::unique_ptr<Algorithm> once(std::function<void()> action) { return std::make_unique<Once>(std::move(action)); }

std::unique_ptr<Algorithm> sequence(std::vector<std::unique_ptr<Algorithm>> parts) {
  return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace rr
