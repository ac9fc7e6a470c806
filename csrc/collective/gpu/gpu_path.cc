#include "collective/gpu/gpu_path.h"

namespace rr {
namespace {

// Why a path cannot be taken; "": it can.
std::string reason_against(Algo path, const DeviceTeam& team, bool is_auto) {
  switch (path) {
    case Algo::kIpc:
      if (team.several_hosts) return "the ranks are on several hosts";
      if (!team.exported) return "some rank's memory cannot be exported to other processes";
      return team.is_mappable ? "" : "a GPU cannot map the memory of another one";
    case Algo::kNccl:
      if (!team.nccl_knows) return "it does not compute this operation with these bits (docs/determinism.md)";
      if (!team.nccl) return "not every rank has NCCL";
      return team.gpus < team.ranks ? "NCCL takes one rank a GPU, and some share one" : "";
    case Algo::kMpi:
      if (!team.mpi) return "not every rank's MPI takes addresses of GPU memory (ringreduce doctor shows what it says)";
      if (!team.mpi_knows) return "it has no reduce and no reduce-scatter";
      // Each of several would send all that it has to the other hosts, where two levels send a part of it.
      if (is_auto && !team.one_a_host) return "some host has several ranks, which send less by way of the host";
      return team.is_whole_group ? "" : "some ranks have joined";
    default:
      return "";
  }
}

const char* reason_for(Algo path) {
  switch (path) {
    case Algo::kIpc:
      return "the ranks share a host and map each other's memory";
    case Algo::kNccl:
      return "every rank has a GPU of its own and NCCL";
    case Algo::kMpi:
      return "every rank's MPI takes addresses of GPU memory";
    default:
      return "pinned host memory";
  }
}

}  // namespace

GpuPath select_gpu_path(const std::string& forced, const DeviceTeam& team) {
  // NCCL knows links between GPUs (NVSwitch, rails between hosts) that reading a peer's memory does not make use of.
  constexpr Algo kPaths[] = {Algo::kNccl, Algo::kIpc, Algo::kMpi, Algo::kStaged};
  std::string reasons;
  for (const Algo path : kPaths) {
    const bool is_auto = forced == "auto";
    if (!is_auto && forced != path_name(path)) continue;
    const std::string why = reason_against(path, team, is_auto);
    if (!why.empty() && !is_auto) return {Algo::kAuto, "RINGREDUCE_GPU_PATH=" + forced + ": " + why};
    if (why.empty()) return {path, is_auto ? reason_for(path) + reasons : "RINGREDUCE_GPU_PATH=" + forced};
    reasons += std::string("; not ") + path_name(path) + ": " + why;
  }
  return {Algo::kAuto, "no path is called '" + forced + "'"};
}

}  // namespace rr
