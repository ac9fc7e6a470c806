// From an entry of the log to the algorithm object that executes this rank's part of it. Everything that the ranks must
// agree on is computed from the entry and the members' requests.
#pragma once

#include <memory>
#include <vector>

#include "collective/direct.h"
#include "planner/gpu/device_planner.h"
#include "planner/resources.h"
#include "transport/stage_writer.h"

namespace rr {

// Executor lock held, but at its end.
class Planner {
 public:
  explicit Planner(Resources resources);

  // position: of the entry in the log. members: its operations here, at least one. first_round: rounds of the stage
  // that were used before. rounds: 0 before; then those of the stage that the algorithm will use. Never null. Throws
  // InternalError, which names the operation, where there is no memory for it.
  std::unique_ptr<Algorithm> plan(uint64_t position, const std::vector<OperationPtr>& members, uint64_t first_round,
                                  size_t& rounds);
  DevicePlanner& on_device() { return on_device_; }
  const DevicePlanner& on_device() const { return on_device_; }

 private:
  std::unique_ptr<Algorithm> algorithm_of(uint64_t position, const std::vector<OperationPtr>& members,
                                          uint64_t first_round, size_t& rounds);
  Team team_for(const RankMask& participants, uint64_t first_round);
  bool are_foldable(const std::vector<OperationPtr>& members) const;
  std::unique_ptr<Algorithm> allreduce(uint64_t position, const std::vector<OperationPtr>& members, Team team,
                                       size_t& rounds) const;
  std::unique_ptr<Algorithm> direct_allreduce(uint64_t position, const std::vector<OperationPtr>& members,
                                              Team team) const;
  std::unique_ptr<Algorithm> pull_registered(uint64_t position, Operation& operation, Team team) const;
  std::byte* mapped(const Operation& operation, int rank, const MemoryRef& ref) const;
  SharedWork shared_work(uint64_t position) const {
    return {from_.control.claims(position), &from_.control.entry(position).completed,
            &from_.control.header().any_withdrawn};
  }

  const Resources from_;
  StageWriter writer_;
  DevicePlanner on_device_;
};

}  // namespace rr
