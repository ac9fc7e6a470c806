// Collectives on device memory by messages straight between GPUs: phases of work on the GPU and of messages, one after
// the other. An all-reduce is two-shot: every rank folds its segment in rank order, so all paths but NCCL's give the
// same bits.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "collective/staged.h"
#include "gpu/device.h"
#include "transport/mpi/device_messages.h"

namespace rr {

// First the moves and folds, then, once the GPU has done them, the messages; the next phase follows when they are done.
struct DevicePhase {
  struct Move {
    DType dtype = DType::kUInt8;
    std::vector<DevicePart> parts;
  };
  struct Message {
    int member = 0;
    std::byte* at = nullptr;
    size_t nbytes = 0;
    bool is_outgoing = false;
  };
  Move move;
  std::vector<DeviceFold> folds;
  Reduction reduction;
  std::vector<Message> messages;
};

// Messages are sent from and received into scratch memory, which outlives the operation if it fails in the middle.
struct DevicePhases {
  std::vector<DevicePhase> phases;
  std::shared_ptr<std::byte> scratch;
};
using DeviceScratch = std::function<std::shared_ptr<std::byte>(size_t nbytes)>;

// A bucket, by dtype, in blocks: the scratch takes three of them at most.
DevicePhases message_allreduce(const std::vector<ReduceJob>& jobs, int me, int size, const DeviceScratch& scratch);
// In one piece: the scratch takes all that this rank sends and all that it receives.
DevicePhases message_exchange(const ExchangeJob& job, int me, int size, const DeviceScratch& scratch);

// world_ranks: of the members. group: its id.
std::unique_ptr<Algorithm> message_path(Device& device, std::shared_ptr<DeviceMessages> messages,
                                        std::vector<int> world_ranks, int group, Team team, DevicePhases phases);

}  // namespace rr
