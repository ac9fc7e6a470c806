// Host memory that is pinned, for the operations of a group one after the other. Grows to what the largest needed.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/pinned_pages.h"

namespace rr {

class PinnedArena {
 public:
  explicit PinnedArena(Device& device) : device_(device) {}
  std::byte* allocate(size_t nbytes);  // until clear(); aligned to a cache line
  void clear();

 private:
  struct Block {
    PinnedPages memory;
    size_t nbytes = 0;
    size_t used = 0;
  };
  Device& device_;
  std::vector<Block> blocks_;
};

}  // namespace rr
