// Pinned host memory that operations of a group use one after the other.

#include <algorithm>

#include "base/errors.h"
#include "engine/operation.h"

namespace rr {
namespace {
constexpr size_t kPage = 4096;
constexpr size_t kLeastBlock = 1 << 20;
}  // namespace

PinnedArena::~PinnedArena() {
  for (Block& block : blocks_) {
    try {
      device_.unpin(block.memory.get());
    } catch (const Error&) {
      continue;  // a broken context has let go of everything
    }
  }
}

std::byte* PinnedArena::allocate(size_t nbytes) {
  nbytes = round_up(nbytes, static_cast<size_t>(FreeOutput::kAlignment));
  for (Block& block : blocks_) {
    if (block.nbytes - block.used < nbytes) continue;
    block.used += nbytes;
    return block.memory.get() + block.used - nbytes;
  }
  Block block = {new_output(round_up(std::max(nbytes, kLeastBlock), kPage)), 0, nbytes};
  block.nbytes = round_up(std::max(nbytes, kLeastBlock), kPage);
  device_.pin(block.memory.get(), block.nbytes);
  blocks_.push_back(std::move(block));
  return blocks_.back().memory.get();
}

void PinnedArena::clear() {
  for (Block& block : blocks_) block.used = 0;
}

}  // namespace rr
