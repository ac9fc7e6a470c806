// The path of an operation on GPUs: how its bytes get from one GPU to another. A fixed rule selects it from what all
// participants have announced, so every rank, and every host, comes to the same path.
#pragma once

#include <cstddef>
#include <string>

#include "collective/select.h"

namespace rr {

// What the participants of an operation can do together.
struct DeviceTeam {
  size_t ranks = 0;
  size_t gpus = 0;             // different ones
  bool is_whole_group = true;  // nobody has joined
  bool several_hosts = false;
  bool exported = false;    // every operand can be mapped by other processes
  bool is_mappable = true;  // nobody has been refused a mapping in this group so far
  bool nccl = false;        // every rank has it
  bool nccl_knows = true;   // and it does the operation as reduction.h says
  bool mpi = false;         // every rank's MPI takes GPU addresses
  bool mpi_knows = true;    // the operation goes by messages: it is no reduce and no reduce-scatter
  bool one_a_host = true;   // every host has one rank
};

struct GpuPath {
  Algo algorithm = Algo::kAuto;  // kAuto: the forced path cannot be taken
  std::string reason;
};

// forced: a value of RINGREDUCE_GPU_PATH.
GpuPath select_gpu_path(const std::string& forced, const DeviceTeam& team);

}  // namespace rr
