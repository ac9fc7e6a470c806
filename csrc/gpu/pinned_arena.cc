#include "gpu/pinned_arena.h"

#include <algorithm>

#include "base/rounding.h"

namespace rr {
namespace {
constexpr size_t kAlignment = 64;  // a cache line, as of outputs (planner/operation.h)
constexpr size_t kPage = 4096;
constexpr size_t kLeastBlock = 1 << 20;
}  // namespace

std::byte* PinnedArena::allocate(size_t nbytes) {
  nbytes = round_up(std::max<size_t>(nbytes, 1), kAlignment);
  for (Block& block : blocks_) {
    if (block.nbytes - block.used < nbytes) continue;
    block.used += nbytes;
    return block.memory.get() + block.used - nbytes;
  }
  const size_t size = round_up(std::max(nbytes, kLeastBlock), kPage);
  blocks_.push_back({pinned_pages(device_, size), size, nbytes});
  return blocks_.back().memory.get();
}

void PinnedArena::clear() {
  for (Block& block : blocks_) block.used = 0;
}

}  // namespace rr
