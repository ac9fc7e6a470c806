// All-reduce of a long tensor on GPUs over several hosts, on two levels: the GPUs of a host reduce-scatter by mapping
// each other's memory, each rank's slice goes down to pinned memory, is reduced over one rank a host and comes up
// again, and the GPUs gather the slices, as a pipeline of pieces. S/r bytes cross a rank's bus each way for r ranks a
// host, where staging the tensor takes S.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "negotiation/segment/hosts.h"
#include "planner/operation.h"

namespace rr {

struct DeviceLevels {
  std::shared_ptr<Device> device;
  std::shared_ptr<DeviceMappings> mappings;
  PinnedArena* arena = nullptr;
  const Team* team = nullptr;    // of the operation
  const Hosts* hosts = nullptr;  // of its members, as many on each
  bool is_mappable = true;       // else the GPUs of this host go through the stage at once
  IpcJob::Refused refused;
  std::function<void(Team&)> pin;  // the stage, for a team that uses it for device memory
};

struct DeviceTensor {
  Piece piece;
  DeviceOperand src;  // exported as a whole, and kept by the operation
  DeviceOperand dst;
};

// Whether all hosts have as many members, and more than one.
bool has_levels(const Hosts& hosts);

// reduction must be foldable_in_place. rounds: of the stage, counted up.
std::unique_ptr<Algorithm> device_levels(const DeviceLevels& levels, const DeviceTensor& tensor,
                                         const Reduction& reduction, Codec codec, size_t& rounds);

}  // namespace rr
