// The one-pass all-reduce over registered memory, and the chunk claims that its ranks share.
#pragma once

#include "collective/algorithm.h"

namespace rr {

struct alignas(64) ClaimLine {
  std::atomic<uint64_t> next;  // next unclaimed chunk of this rank's share
  // Not on the line that the others read while they look for chunks: this rank writes it before and after each chunk.
  alignas(64) std::atomic<uint32_t> storing;  // 1 while this rank stores into memory of the others
  std::atomic<uint32_t> withdrawn;  // 1 once this rank has taken its memory back: nobody begins to store there
};

// In memory shared by the team. Zero when a job starts, but for what a rank has withdrawn, which is for good.
struct SharedWork {
  ClaimLine* claims = nullptr;                 // [group rank]
  std::atomic<uint64_t>* completed = nullptr;  // chunks done by anybody
  // 0 while `withdrawn` is 0 in all claims. On a line that hardly changes: claims change with each chunk.
  const std::atomic<uint32_t>* any_withdrawn = nullptr;
};

struct DirectJob {
  struct Tensor {
    std::vector<const void*> srcs;  // by member, as mapped here
    std::vector<void*> dsts;
    size_t count = 0;
  };
  std::vector<Tensor> tensors;
  Reduction reduction;
};

std::unique_ptr<Algorithm> direct(Team team, SharedWork work, DirectJob job);

}  // namespace rr
