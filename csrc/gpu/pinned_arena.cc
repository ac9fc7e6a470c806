#include "gpu/pinned_arena.h"

#include <algorithm>

namespace rr {
namespace {
constexpr size_t kAlignment = 64;  // a cache line, as of outputs (planner/operation.h)
constexpr size_t kPage = 4096;
constexpr size_t kLeastBlock = 1 << 20;

constexpr size_t whole(size_t nbytes, size_t multiple) { return (nbytes + multiple - 1) / multiple * multiple; }
}  // namespace

std::byte* PinnedArena::allocate(size_t nbytes) {
  nbytes = whole(std::max<size_t>(nbytes, 1), kAlignment);
  for (Block& block : blocks_) {
    if (block.nbytes - block.used < nbytes) continue;
    block.used += nbytes;
    return block.memory.get() + block.used - nbytes;
  }
  const size_t size = whole(std::max(nbytes, kLeastBlock), kPage);
  blocks_.push_back({pinned_pages(device_, size), size, nbytes});
  return blocks_.back().memory.get();
}

void PinnedArena::clear() {
  for (Block& block : blocks_) block.used = 0;
}

}  // namespace rr
