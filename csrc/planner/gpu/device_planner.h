// The plans of operations on memory of a GPU, by the path that the entry names; and what these plans keep from one
// operation to the next.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/gpu/nccl_teams.h"
#include "collective/gpu/scratch.h"
#include "planner/gpu/device_levels.h"
#include "planner/resources.h"

namespace rr {

// Whether NCCL can do what the operation asks for. size: ranks of the group.
bool nccl_knows(const Operation& operation, int size);

// Whether GPUs work in each other's memory: on the path ipc, and on the first level of 'staged' over several hosts.
inline bool maps_gpu_memory(const Entry& entry, const Hosts& hosts) {
  const Algo path = static_cast<Algo>(entry.algorithm);
  return path == Algo::kIpc || (path == Algo::kStaged && hosts.several());
}

// Executor lock held, but at its end.
class DevicePlanner {
 public:
  explicit DevicePlanner(const Resources& from) : from_(from) {}
  ~DevicePlanner();
  DevicePlanner(const DevicePlanner&) = delete;
  DevicePlanner& operator=(const DevicePlanner&) = delete;

  // rounds: of the stage, that the algorithm will use.
  std::unique_ptr<Algorithm> plan(const Entry& entry, const std::vector<OperationPtr>& members, Team team,
                                  size_t& rounds);
  // The path 'staged' on one host has the plans of host memory, with a team whose stage is pinned here.
  void prepare_staged(const Entry& entry, Team& team);

  // Kernels of NCCL's wait for ranks that will not come: ends them.
  void abort_nccl();
  void close_nccl();  // at the group's end
  // Whether NCCL prepares something on the GPU; it rings no bell.
  bool must_poll() const { return nccl_ != nullptr && nccl_->must_poll(); }
  bool waits_for_peers() const { return nccl_ != nullptr && nccl_->is_at_work(); }

 private:
  void log_path(const Entry& entry);
  void pin_stage(Team& team);
  IpcJob::Refused on_refusal();
  std::unique_ptr<Algorithm> ipc_plan(const std::vector<OperationPtr>& members, const Team& team, size_t& rounds);
  // library_plans.cc
  std::unique_ptr<Algorithm> nccl_plan(const std::vector<OperationPtr>& members, Team team);
  std::unique_ptr<Algorithm> mpi_plan(const std::vector<OperationPtr>& members, Team team);
  // in_host_memory.cc
  std::unique_ptr<Algorithm> in_host_memory(const std::vector<OperationPtr>& members, const Team& team, size_t& rounds);
  OperationPtr host_copy(const Operation& operation) const;
  DeviceLevels levels(const Team& team, const Hosts& hosts);

  const Resources& from_;
  std::byte* pinned_stage_ = nullptr;
  std::unique_ptr<PinnedArena> arena_;
  std::shared_ptr<NcclTeams> nccl_;
  std::unique_ptr<ScratchMemory> scratch_;
  std::vector<Algo> logged_paths_;
  bool has_logged_refusal_ = false;
};

}  // namespace rr
