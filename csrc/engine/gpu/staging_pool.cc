#include "engine/gpu/staging_pool.h"

#include <algorithm>

namespace rr {
namespace {
constexpr size_t kLeast = 65536;
constexpr size_t kKept = 8;  // in the pool: a few messages each way are under way at a time
}  // namespace

Staging StagingPool::take(size_t nbytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(), [&](const Staging& one) { return one.nbytes >= nbytes; });
  if (fits != free_.end()) {
    Staging found = std::move(*fits);
    free_.erase(fits);
    return found;
  }
  size_t size = kLeast;
  while (size < nbytes) size *= 2;
  return {pinned_pages(*device_, size), size};
}

void StagingPool::give_back(Staging staging) {
  if (staging.memory == nullptr) return;
  free_.push_back(std::move(staging));
  if (free_.size() > kKept) free_.erase(free_.begin());
}

void StagingPool::retire(Staging staging) {
  if (staging.memory != nullptr) retired_.push_back(std::move(staging));
}

}  // namespace rr
