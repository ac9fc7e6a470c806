// Group: operations on memory of a GPU by messages of an MPI that takes its addresses.

#include "collective/device_phases.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

// Reduce and reduce-scatter are left to the other roads. Without being forced it is taken where every host has one
// rank: with several each would send all that it has to the other hosts, where two levels send a part of it.
bool Group::can_mpi(const Operation& operation) const {
  const std::string& road = context_.settings().cuda_road;
  const bool is_wanted = road == "mpi" || (road == "auto" && hosts_.count() == size());
  const bool is_known = operation.kind != Kind::kReduce && operation.kind != Kind::kReduceScatter;
  return size() > 1 && is_wanted && is_known && context_.device_messages() != nullptr;
}

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
