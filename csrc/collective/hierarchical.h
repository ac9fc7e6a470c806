// What is done on two levels, within a host and between hosts, as a pipeline.
#pragma once

#include "collective/linked.h"

namespace rr {

// What a rank does on its host for one piece: its part of the reduction within the host, which lets the piece go out to
// the other hosts, or (is_gather) the sharing of what has come from them.
struct HostPart {
  size_t piece = 0;
  bool is_gather = false;
  std::unique_ptr<Algorithm> algorithm;
};

// A HostPart is begun when the ones before it are done, and a gather when its piece is finished between hosts. Every
// rank of a host has the same parts in the same order. across is null for a rank that takes no part between hosts.
std::unique_ptr<Algorithm> hierarchical(std::vector<HostPart> parts, std::unique_ptr<Piecewise> across);

}  // namespace rr
