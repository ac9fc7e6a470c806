// Group: operations on memory of a GPU by NCCL.

#include <algorithm>

#include "base/errors.h"
#include "collective/gpu/nccl_path.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

bool Group::nccl_knows(const Operation& operation) const {
  const bool reduces =
      operation.kind == Kind::kAllreduce || operation.kind == Kind::kReduce || operation.kind == Kind::kReduceScatter;
  if (!reduces) return true;
  Reduction reduction = reduction_of(operation.signature, size());
  return std::all_of(operation.srcs.begin(), operation.srcs.end(), [&](const TensorView& tensor) {
    reduction.dtype = tensor.dtype;
    return nccl_can(reduction);
  });
}

bool Group::has_nccl() const {
  const std::string& path = context_.settings().gpu_path;
  return size() > 1 && (path == "auto" || path == "nccl") && context_.nccl() != nullptr;
}

std::unique_ptr<Algorithm> Group::build_nccl(const std::vector<OperationPtr>& members, Team team) {
  Operation& first = *members.front();
  add(context_.stats().cuda_nccl, 1);
  if (nccl_ == nullptr) {
    const auto library = context_.nccl();
    if (library == nullptr) throw UnavailableError(where(first) + ": this rank has no NCCL");
    nccl_ = std::make_shared<NcclTeams>(library, *context_.device(), context_.log(), here() + "]");
  }
  NcclJob job;
  if (first.kind == Kind::kAllreduce) {
    std::vector<std::pair<Reduction, std::vector<Piece>>> parts;
    for (ReduceJob& one : allreduce_jobs(members)) parts.emplace_back(one.reduction, std::move(one.pieces));
    job = nccl_allreduce(parts, [this](size_t nbytes) { return nccl_->scratch(nbytes); });
  } else if (first.kind == Kind::kReduce || first.kind == Kind::kReduceScatter) {
    job = nccl_reduce(reduce_job(first), rank_);
  } else {
    job = nccl_exchange(exchange_job(first), rank_, size());
  }
  return nccl_path(nccl_, std::move(team), std::move(job));
}

// Executor lock held. At the group's end.
void Group::leave_nccl() {
  if (nccl_ == nullptr) return;
  if (has_failed(control_)) nccl_->abort();  // there may be nobody to wait for
  nccl_->close();
}

}  // namespace rr
