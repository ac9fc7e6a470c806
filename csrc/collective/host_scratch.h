// Host memory that operations work in: of the process, used again by whichever operation comes next, of any group.
#pragma once

#include <cstddef>
#include <memory>

namespace rr {

// Gives memory back to the process's scratch, whence it came.
struct GiveBackScratch {
  size_t nbytes = 0;  // of the block
  void operator()(std::byte* block) const noexcept;
};
using HostScratch = std::unique_ptr<std::byte[], GiveBackScratch>;

// At least nbytes, aligned to a cache line, with anything in them. Thread-safe, and never waits for other operations.
//
// The memory stays with the process, so that its pages are faulted in once, not in each step of a training: 128 MiB
// took 90 ms of a core. What nobody has used for a minute goes back to the system, and the oldest of more than twice
// what was once used at a time: a block serves what takes at least half of it.
HostScratch take_scratch(size_t nbytes);

struct ScratchCounts {
  size_t used_nbytes = 0;
  size_t kept_nbytes = 0;  // and free
};
ScratchCounts scratch_counts();

}  // namespace rr
