#include "engine/staging_pool.h"

#include <algorithm>

#include "base/errors.h"

namespace rr {
namespace {
constexpr size_t kLeast = 65536;
constexpr size_t kKept = 8;  // in the pool: a few messages each way are under way at a time
}  // namespace

StagingPool::~StagingPool() {
  for (const Staging& staging : free_) unpin(staging);
  for (const Staging& staging : retired_) unpin(staging);
}

Staging StagingPool::take(size_t nbytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(), [&](const Staging& one) { return one.nbytes >= nbytes; });
  if (fits != free_.end()) {
    Staging found = std::move(*fits);
    free_.erase(fits);
    return found;
  }
  size_t size = kLeast;
  while (size < nbytes) size *= 2;
  Staging fresh = {new_output(size), size};
  device_->pin(fresh.memory.get(), size);
  return fresh;
}

void StagingPool::give_back(Staging staging) {
  if (staging.memory == nullptr) return;
  free_.push_back(std::move(staging));
  if (free_.size() <= kKept) return;
  unpin(free_.front());
  free_.erase(free_.begin());
}

void StagingPool::retire(Staging staging) {
  if (staging.memory != nullptr) retired_.push_back(std::move(staging));
}

void StagingPool::unpin(const Staging& staging) {
  try {
    device_->unpin(staging.memory.get());
  } catch (const Error&) {
    return;  // a broken context has let go of everything
  }
}

}  // namespace rr
