// Group: operations on memory of a GPU by messages of an MPI that takes its addresses.

#include "collective/gpu/device_phases.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

std::unique_ptr<Algorithm> Group::build_mpi(const std::vector<OperationPtr>& members, Team team) {
  Operation& first = *members.front();
  Device& device = *context_.device();
  add(context_.stats().cuda_mpi, 1);
  if (scratch_ == nullptr) scratch_ = std::make_unique<ScratchMemory>(device);
  const auto scratch = [this](size_t nbytes) { return scratch_->get(nbytes); };
  DevicePhases phases = first.kind == Kind::kAllreduce
                            ? message_allreduce(allreduce_jobs(members), rank_, size(), scratch)
                            : message_exchange(exchange_job(first), rank_, size(), scratch);
  return message_road(device, context_.device_messages(), world_ranks_, id_, std::move(team), std::move(phases));
}

}  // namespace rr
