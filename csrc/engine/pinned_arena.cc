// Pinned host memory that operations of a group use one after the other.

#include <algorithm>

#include "base/errors.h"
#include "engine/operation.h"

namespace rr {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLeastBlock = 1 << 20;

// Pages are pinned, and those of a block are nobody else's.
std::byte* first_page(std::byte* memory) {
  const size_t beyond = reinterpret_cast<uintptr_t>(memory) % kPage;
  return beyond == 0 ? memory : memory + (kPage - beyond);
}

}  // namespace

PinnedArena::~PinnedArena() {
  for (Block& block : blocks_) {
    try {
      device_.unpin(first_page(block.memory.get()));
    } catch (const Error&) {
      continue;  // a broken context has let go of everything
    }
  }
}

std::byte* PinnedArena::allocate(size_t nbytes) {
  nbytes = round_up(std::max<size_t>(nbytes, 1), static_cast<size_t>(FreeOutput::kAlignment));
  for (Block& block : blocks_) {
    if (block.nbytes - block.used < nbytes) continue;
    block.used += nbytes;
    return first_page(block.memory.get()) + block.used - nbytes;
  }
  const size_t size = round_up(std::max(nbytes, kLeastBlock), kPage);
  Block block = {new_output(size + kPage), size, nbytes};
  std::byte* const begin = first_page(block.memory.get());
  device_.pin(begin, size);
  blocks_.push_back(std::move(block));
  return begin;
}

void PinnedArena::clear() {
  for (Block& block : blocks_) block.used = 0;
}

}  // namespace rr
