// Copies on a work stream as algorithms: issued by one step, waited for by another.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collective/algorithm.h"

namespace rr {

class StreamCopies {
 public:
  StreamCopies(Device& device, WorkStream work_stream) : device_(device), work_stream_(work_stream) {}

  // A step that issues the copies (counts are bytes) and does not wait.
  std::unique_ptr<Algorithm> issue(std::vector<DevicePart> parts) {
    marks_->emplace_back();
    return once([&device = device_, work_stream = work_stream_, parts = std::move(parts), marks = marks_,
                 at = marks_->size() - 1] {
      for (const DevicePart& part : parts) {
        if (part.count != 0) device.copy(work_stream, part.dst, part.src, part.count);
      }
      (*marks)[at] = device.mark(work_stream);
    });
  }
  // Done when the copies of issue() number `index`, and those before, have been made.
  std::unique_ptr<Algorithm> await(size_t index) const { return std::make_unique<Await>(device_, marks_, index); }
  std::unique_ptr<Algorithm> await_last() const { return await(marks_->size() - 1); }

 private:
  using Marks = std::shared_ptr<std::vector<Mark>>;
  class Await final : public Algorithm {
   public:
    Await(Device& device, Marks marks, size_t index) : device_(device), marks_(std::move(marks)), index_(index) {}
    Step step() override { return device_.passed((*marks_)[index_]) ? Step::kDone : Step::kIdle; }
    bool needs(int) const override { return false; }

   private:
    Device& device_;
    Marks marks_;
    size_t index_;
  };

  Device& device_;
  WorkStream work_stream_;
  Marks marks_ = std::make_shared<std::vector<Mark>>();
};

}  // namespace rr
