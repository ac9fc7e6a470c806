#include "engine/gpu/staging_pool.h"

#include <utility>

namespace rr {
namespace {
constexpr size_t kLeast = 65536;
// In the pool: a few messages each way are under way at a time. The last used one stays, however large.
constexpr size_t kKept = 8;
constexpr size_t kKeptNbytes = size_t{256} << 20;
constexpr size_t kMostTimes = 16;  // as large as needed: a small message leaves large memory to large ones

// The least that has room; empty: there is none.
Staging taken(std::vector<Staging>& from, size_t nbytes, size_t most) {
  auto best = from.end();
  for (auto one = from.begin(); one != from.end(); ++one) {
    const bool fits = one->nbytes >= nbytes && one->nbytes <= most;
    if (fits && (best == from.end() || one->nbytes < best->nbytes)) best = one;
  }
  if (best == from.end()) return {};
  Staging found = std::move(*best);
  from.erase(best);
  return found;
}

}  // namespace

Staging StagingPool::take(size_t nbytes) {
  size_t size = kLeast;
  while (size < nbytes) size *= 2;
  Staging found = taken(free_, nbytes, size * kMostTimes);
  if (found.memory == nullptr) found = taken(*surplus_.lock(), nbytes, size * kMostTimes);
  if (found.memory == nullptr) found = {pinned_pages(*device_, size), size};
  return found;
}

void StagingPool::give_back(Staging staging) {
  if (staging.memory == nullptr) return;
  free_.push_back(std::move(staging));
  size_t nbytes = 0;
  for (const Staging& one : free_) nbytes += one.nbytes;
  while (free_.size() > 1 && (free_.size() > kKept || nbytes > kKeptNbytes)) {
    nbytes -= free_.front().nbytes;
    surplus_.lock()->push_back(std::move(free_.front()));
    free_.erase(free_.begin());
  }
}

std::vector<Staging> StagingPool::take_surplus() { return std::exchange(*surplus_.lock(), {}); }

void StagingPool::give_back_surplus(std::vector<Staging> surplus) {
  const auto all = surplus_.lock();
  for (Staging& one : surplus) all->push_back(std::move(one));
}

void StagingPool::retire(Staging staging) {
  if (staging.memory != nullptr) retired_.push_back(std::move(staging));
}

}  // namespace rr
