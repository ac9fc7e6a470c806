// Collectives on device memory by NCCL. First the calls are planned, from what all members know alike, then an
// algorithm issues them as one group and looks after them.
//
// NCCL folds in an order of its own, and in the tensor's own type: sums of floats are the same on all ranks, but not
// those of the other paths to the last bit.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "collective/gpu/nccl_teams.h"
#include "collective/staged.h"

namespace rr {

struct NcclCall {
  enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive };
  Kind kind = Kind::kAllReduce;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  size_t count = 0;     // elements; bytes of what is not reduced
  Reduction reduction;  // of what is
  int peer = 0;         // member index: root, or the other end
};

struct NcclJob {
  struct Move {
    DType dtype = DType::kUInt8;
    std::vector<DevicePart> parts;
  };
  std::vector<Move> before;
  std::vector<NcclCall> calls;
  std::vector<Move> after;
  std::shared_ptr<std::byte> scratch;  // where packed tensors lie meanwhile
};

using Scratch = std::function<std::shared_ptr<std::byte>(size_t nbytes)>;

// A bucket, by dtype; every reduction has passed nccl_can.
NcclJob nccl_allreduce(const std::vector<std::pair<Reduction, std::vector<Piece>>>& parts, const Scratch& scratch);
// Reduce and reduce-scatter; for the latter job.owned has a range for each of the `size` members.
NcclJob nccl_reduce(const ReduceJob& job, int me);
// Everything that only moves. job: as for the other algorithms, of a team of all ranks.
NcclJob nccl_exchange(const ExchangeJob& job, int me, int size);

std::unique_ptr<Algorithm> nccl_path(std::shared_ptr<NcclTeams> teams, Team team, NcclJob job);

}  // namespace rr
