// Pinned host memory for messages of GPU memory, kept for the next ones: pinning takes longer than most copies.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/operation.h"

namespace rr {

struct Staging {
  Output memory;
  size_t nbytes = 0;
};

// One thread at a time.
class StagingPool {
 public:
  explicit StagingPool(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;
  Staging take(size_t nbytes);  // at least so many
  void give_back(Staging staging);
  void retire(Staging staging);  // that a lane may still be working on: kept to the end

 private:
  void unpin(const Staging& staging);
  const std::shared_ptr<Device> device_;
  std::vector<Staging> free_;
  std::vector<Staging> retired_;
};

}  // namespace rr
