// DevicePlanner: operations by NCCL, and by messages of an MPI that takes addresses of GPU memory.

#include <algorithm>

#include "base/errors.h"
#include "collective/gpu/device_phases.h"
#include "collective/gpu/nccl_path.h"
#include "negotiation/segment/failure.h"
#include "planner/exchange_plan.h"
#include "planner/gpu/device_planner.h"
#include "planner/reduction_plan.h"

namespace rr {

bool nccl_knows(const Operation& operation, int size) {
  const bool reduces =
      operation.kind == Kind::kAllreduce || operation.kind == Kind::kReduce || operation.kind == Kind::kReduceScatter;
  if (!reduces) return true;
  Reduction reduction = reduction_of(operation.signature, size);
  return std::all_of(operation.srcs.begin(), operation.srcs.end(), [&](const TensorView& tensor) {
    reduction.dtype = tensor.dtype;
    return nccl_can(reduction);
  });
}

std::unique_ptr<Algorithm> DevicePlanner::nccl_plan(const std::vector<OperationPtr>& members, Team team) {
  Operation& first = *members.front();
  if (nccl_ == nullptr) {
    const auto library = from_.gpu.nccl();
    if (library == nullptr) throw UnavailableError(from_.where(first) + ": this rank has no NCCL");
    nccl_ = std::make_shared<NcclTeams>(library, *from_.gpu.device(), from_.log, from_.here() + "]");
  }
  NcclJob job;
  if (first.kind == Kind::kAllreduce) {
    std::vector<std::pair<Reduction, std::vector<Piece>>> parts;
    for (ReduceJob& one : allreduce_jobs(members, from_.size()))
      parts.emplace_back(one.reduction, std::move(one.pieces));
    job = nccl_allreduce(parts, [this](size_t nbytes) { return nccl_->scratch(nbytes); });
  } else if (first.kind == Kind::kReduce || first.kind == Kind::kReduceScatter) {
    job = nccl_reduce(reduce_job(first, from_.size()), from_.rank);
  } else {
    job = nccl_exchange(exchange_job(from_, first), from_.rank, from_.size());
  }
  add(from_.stats.cuda_nccl, 1);
  return nccl_path(nccl_, std::move(team), std::move(job));
}

void DevicePlanner::abort_nccl() {
  if (nccl_ != nullptr) nccl_->abort();
}

void DevicePlanner::close_nccl() {
  if (nccl_ == nullptr) return;
  if (has_failed(from_.control)) nccl_->abort();  // there may be nobody to wait for
  nccl_->close();
}

std::unique_ptr<Algorithm> DevicePlanner::mpi_plan(const std::vector<OperationPtr>& members, Team team) {
  Operation& first = *members.front();
  Device& device = *from_.gpu.device();
  if (scratch_ == nullptr) scratch_ = std::make_unique<ScratchMemory>(device);
  const auto scratch = [this](size_t nbytes) { return scratch_->get(nbytes); };
  DevicePhases phases =
      first.kind == Kind::kAllreduce
          ? message_allreduce(allreduce_jobs(members, from_.size()), from_.rank, from_.size(), scratch)
          : message_exchange(exchange_job(from_, first), from_.rank, from_.size(), scratch);
  add(from_.stats.cuda_mpi, 1);
  return message_path(device, from_.gpu.device_messages(), from_.world_ranks, from_.id, std::move(team),
                      std::move(phases));
}

}  // namespace rr
