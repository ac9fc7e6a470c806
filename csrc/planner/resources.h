// What the parts of a group work with.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/stats.h"
#include "collective/gpu/ipc.h"
#include "data/reduction.h"
#include "gpu/nccl/nccl.h"
#include "negotiation/negotiation.h"
#include "os/segments.h"
#include "planner/operation.h"
#include "recorder/recorder.h"
#include "transport/link.h"
#include "transport/mpi/device_messages.h"

namespace rr {

// The GPU of this rank, and what reaches other GPUs from it.
class DeviceResources {
 public:
  virtual Device* device() const = 0;  // from the first operation on device memory on; null before
  virtual std::shared_ptr<Device> shared_device() const = 0;
  virtual const std::shared_ptr<DeviceMappings>& device_mappings() const = 0;
  // Messages between GPUs, if the network takes their addresses; else null.
  virtual const std::shared_ptr<DeviceMessages>& device_messages() const = 0;
  // NCCL, if this rank has one that will do; null: the log says why not.
  virtual std::shared_ptr<const NcclLibrary> nccl() = 0;
  // Executor lock held. Takes what work streams may still work on, though nobody waits for the result, and keeps all of
  // it until they have come to its end. to_the_end: until the context ends, because another rank's GPU may work there.
  virtual void abandon(std::unique_ptr<Algorithm> algorithm, const std::vector<OperationPtr>& operations,
                       bool to_the_end) = 0;

 protected:
  ~DeviceResources() = default;
};

// All that it refers to outlives who has it.
struct Resources {
  const ControlSegment& control;
  const Negotiation& negotiation;
  const Hosts& hosts;
  int rank;                                         // in the group
  const std::vector<int>& world_ranks;              // by group rank
  int id;                                           // of the group
  const std::vector<Bell*>& bells;                  // by group rank
  const std::vector<std::unique_ptr<Link>>& links;  // by group rank; null for this rank
  const Kernels& kernels;
  const SegmentRegistry& segments;
  const Settings& settings;
  const Log& log;
  Stats& stats;
  DeviceResources& gpu;
  Recorder& recorder;
  RecordedGroup recorded_group;       // the group there
  std::function<std::string()> here;  // how messages about the group begin; the bracket is left open

  int size() const { return control.size(); }
  // How messages about an operation end.
  std::string where(const Operation& operation) const { return here() + ", " + called(operation) + "]"; }
  const Signature& announced(const Operation& operation, int of_rank) const {
    return control.signature(operation.ticket.request_slot, of_rank);
  }
};

}  // namespace rr
