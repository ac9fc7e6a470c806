// Pinned host memory for messages of GPU memory, kept for the next ones: pinning takes longer than most copies.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/guarded.h"
#include "gpu/pinned_pages.h"

namespace rr {

struct Staging {
  PinnedPages memory;
  size_t nbytes = 0;
};

// One thread at a time, but for the surplus.
class StagingPool {
 public:
  explicit StagingPool(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;
  Staging take(size_t nbytes);  // at least so many
  void give_back(Staging staging);
  // What is beyond what is kept. Whoever takes it lets go of it in a thread that nobody waits for: unpinning waits
  // until the GPU is idle. Any thread.
  std::vector<Staging> take_surplus();
  void give_back_surplus(std::vector<Staging> surplus);
  void retire(Staging staging);  // that a work stream may still be working on: kept to the end

 private:
  const std::shared_ptr<Device> device_;  // before what it has pinned
  std::vector<Staging> free_;             // the longest unused first
  Guarded<std::vector<Staging>> surplus_;
  std::vector<Staging> retired_;
};

}  // namespace rr
