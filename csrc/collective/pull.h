// Copies and folds of memory that is mapped here: this rank's own, or registered memory of the others, which every rank
// reads straight, so that nobody pushes.
#pragma once

#include "collective/direct.h"

namespace rr {

struct PullJob {
  // Copied from its one source, unless that is the destination; or folded from its sources, in their order.
  struct Part {
    std::vector<const std::byte*> srcs;
    std::byte* dst = nullptr;
    size_t count = 0;  // elements
    bool folds = false;
  };
  std::vector<Part> parts;
  Reduction reduction;  // its dtype gives the size of an element
};

// Needs no other rank.
std::unique_ptr<Algorithm> local(const Kernels& kernels, PullJob job);
// work.completed counts the members that have taken everything: until all have, the inputs must stay as they are.
std::unique_ptr<Algorithm> pull(Team team, SharedWork work, PullJob job);

}  // namespace rr
