// Collectives on memory of GPUs that the ranks of one host map from each other: no copy goes through the host.
//
// Each GPU has a leader, the first member on it, and only leaders launch: contexts of several processes on one GPU take
// turns, so ranks that share it are served best by one kernel. A reduction is cut into a slice for each GPU; its leader
// folds the slice of all members' inputs in rank order and stores it into all outputs. What a member wants of the
// others' blocks its leader copies. On one GPU of memory bandwidth B an all-reduce of S bytes on n ranks takes 2nS / B
// or more.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/gpu/ipc_mappings.h"
#include "collective/staged.h"

namespace rr {

// What a member wants: nbytes of another member's first operand, at an offset in its own second one. Travels.
struct CopyRequest {
  uint64_t member = 0;
  uint64_t src_offset = 0;
  uint64_t dst_offset = 0;
  uint64_t nbytes = 0;
};

struct IpcJob {
  Device* device = nullptr;
  std::shared_ptr<DeviceMappings> mappings;
  bool is_forced = false;  // then a refused mapping is the operation's error
  // Else this is told, once all members know, and `otherwise` runs. for_good: it would be so with other memory too.
  using Refused = std::function<void(const std::string& why, bool for_good)>;
  Refused refused;

  std::vector<DeviceOperand> operands;     // of this rank; as many on all: input and output of each tensor in turn
  std::vector<std::byte*> own;             // the same, as this rank addresses them
  DeviceExports exports;                   // of those that the operation does not keep itself
  std::vector<ReduceJob> reductions;       // their pieces are the tensors, in the same order on all
  std::vector<CopyRequest> copy_requests;  // or what this rank wants to have moved: at most one of each member
  std::function<std::unique_ptr<Algorithm>(Team)> otherwise;
  size_t rounds_otherwise = 0;
};
size_t rounds_of(const IpcJob& job, const Stage& stage, int members);  // both ways together
std::unique_ptr<Algorithm> ipc(Team team, IpcJob job);

}  // namespace rr
