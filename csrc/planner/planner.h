// From an entry of the log to the algorithm object that executes this rank's part of it. Everything that the ranks must
// agree on is computed from the entry and the members' requests.
#pragma once

#include <memory>
#include <vector>

#include "planner/gpu/device_planner.h"
#include "planner/resources.h"

namespace rr {

// Executor lock held.
class Planner {
 public:
  explicit Planner(Resources from);

  // position: of the entry in the log. members: its operations here. first_round: rounds of the stage that were used
  // before. rounds: of the stage, that the algorithm will use.
  std::unique_ptr<Algorithm> plan(uint64_t position, const std::vector<OperationPtr>& members, uint64_t first_round,
                                  size_t& rounds);
  DevicePlanner& gpu() { return gpu_; }
  const DevicePlanner& gpu() const { return gpu_; }

 private:
  Team team_for(const RankMask& participants, uint64_t first_round);
  std::unique_ptr<Algorithm> allreduce(uint64_t position, const std::vector<OperationPtr>& members, Team team,
                                       size_t& rounds) const;
  std::unique_ptr<Algorithm> direct_allreduce(uint64_t position, const std::vector<OperationPtr>& members,
                                              Team team) const;
  std::unique_ptr<Algorithm> pull_registered(uint64_t position, Operation& operation, Team team) const;
  std::byte* mapped(const Operation& operation, int rank, const MemoryRef& ref) const;
  SharedWork shared_work(uint64_t position) const {
    return {from_.control.claims(position), &from_.control.entry(position).completed};
  }

  const Resources from_;
  StageWriter writer_;
  DevicePlanner gpu_;
};

}  // namespace rr
