#include "planner/gpu/device_planner.h"

#include <algorithm>

#include "base/errors.h"
#include "planner/exchange_plan.h"
#include "planner/reduction_plan.h"

namespace rr {

DevicePlanner::~DevicePlanner() {
  if (pinned_stage_ == nullptr) return;
  try {
    from_.gpu.device()->unpin(pinned_stage_);
  } catch (const Error& error) {
    from_.log.warning(from_.here() + "] " + error.what());
  }
  if (from_.gpu.device()->is_left()) from_.control.keep_mapped();  // still pinned, perhaps
}

std::unique_ptr<Algorithm> DevicePlanner::plan(const Entry& entry, const std::vector<OperationPtr>& members, Team team,
                                               size_t& rounds) {
  log_path(entry);
  switch (static_cast<Algo>(entry.algorithm)) {
    case Algo::kIpc:
      return ipc_plan(members, team, rounds);
    case Algo::kNccl:
      return nccl_plan(members, std::move(team));
    case Algo::kMpi:
      return mpi_plan(members, std::move(team));
    case Algo::kStaged: {
      std::unique_ptr<Algorithm> algorithm = in_host_memory(members, team, rounds);
      add(from_.stats.cuda_staged, 1);
      return algorithm;
    }
    default:
      throw InternalError(from_.where(*members.front()) +
                          ": no such path yet: " + rr::name(static_cast<Algo>(entry.algorithm)));
  }
}

void DevicePlanner::prepare_staged(const Entry& entry, Team& team) {
  log_path(entry);
  add(from_.stats.cuda_staged, 1);
  pin_stage(team);
}

void DevicePlanner::log_path(const Entry& entry) {
  const Algo path = static_cast<Algo>(entry.algorithm);
  if (std::find(logged_paths_.begin(), logged_paths_.end(), path) != logged_paths_.end()) return;
  logged_paths_.push_back(path);
  // The first host chooses it, and only its ranks know all that the choice depends on.
  const std::string reason =
      from_.hosts.is_first() ? from_.negotiation.requests().gpu_path_of(entry).reason : "the first host's choice";
  from_.log.info(from_.here() + "] " + from_.gpu.device()->name() + ": operations go by the path '" + path_name(path) +
                 "': " + reason);
}

// Work streams copy from and to the stage of all ranks here.
void DevicePlanner::pin_stage(Team& team) {
  team.device = from_.gpu.device();
  if (pinned_stage_ != nullptr) return;
  const Stage& stage = team.stage;
  team.device->pin(stage.slots, static_cast<size_t>(from_.size()) * stage.slot_count * stage.slot_stride);
  pinned_stage_ = stage.slots;
}

// What to do when all members of a meeting know that one of them could not map another's memory: the log says so once,
// and later operations do not try.
IpcJob::Refused DevicePlanner::on_refusal() {
  return [this](const std::string& why, bool for_good) {
    if (!for_good) return;
    from_.control.header().unmappable.store(1);
    if (has_logged_refusal_) return;
    has_logged_refusal_ = true;
    from_.log.warning(from_.here() +
                      "] a GPU cannot map another rank's memory, so operations leave the path 'ipc': " + why);
  };
}

std::unique_ptr<Algorithm> DevicePlanner::ipc_plan(const std::vector<OperationPtr>& members, const Team& team,
                                                   size_t& rounds) {
  Operation& first = *members.front();
  Device& device = *from_.gpu.device();
  IpcJob job;
  job.device = &device;
  job.mappings = from_.gpu.device_mappings();
  job.is_forced = from_.settings.gpu_path == "ipc";
  job.refused = [this, refused = on_refusal()](const std::string& why, bool for_good) {
    add(from_.stats.cuda_staged, 1);
    refused(why, for_good);
  };
  const auto show = [&](const DeviceOperand& operand, std::byte* address) {
    job.operands.push_back(operand);
    job.own.push_back(address);
  };
  size_t otherwise = 0;
  if (first.kind == Kind::kAllreduce) {
    job.reductions = allreduce_jobs(members, from_.size());
    for (const ReduceJob& reduction : job.reductions) otherwise += rounds_of(reduction, team.stage);
    // In the order of the pieces: by dtype, and then as they come.
    for (const ReduceJob& reduction : job.reductions) {
      for (const OperationPtr& member : members) {
        for (size_t i = 0; i < member->srcs.size(); ++i) {
          if (member->srcs[i].dtype != reduction.reduction.dtype) continue;
          show(member->operands[i], member->srcs[i].data);
          show(member->operands[member->srcs.size() + i], member->dsts[i].data);
        }
      }
    }
    job.otherwise = [this, reductions = job.reductions](Team others) {
      pin_stage(others);
      return two_shots(std::move(others), reductions, from_.stats);
    };
  } else if (first.kind == Kind::kReduce || first.kind == Kind::kReduceScatter) {
    job.reductions = {reduce_job(first, from_.size())};
    otherwise = rounds_of(job.reductions[0], team.stage);
    show(first.operands[0], first.srcs[0].data);
    show(first.operands[1], first.dsts[0].data);
    job.otherwise = [this, reductions = job.reductions](Team others) {
      pin_stage(others);
      return two_shots(std::move(others), reductions, from_.stats);
    };
  } else {
    const ExchangeJob moves = exchange_job(from_, first);
    otherwise = rounds_of(moves, team.stage);
    const bool sends = !moves.outgoing.empty();
    show(sends ? first.operands[0] : DeviceOperand(), sends ? first.srcs[0].data : nullptr);
    // The whole output: what comes for this rank lies in it one after the other.
    std::byte* output = nullptr;
    size_t nbytes = 0;
    for (const ExchangeJob::Incoming& in : moves.incoming) {
      if (output == nullptr) output = in.dst;
      nbytes += in.nbytes;
      job.copy_requests.push_back(
          {static_cast<uint64_t>(in.member), in.src_offset, static_cast<uint64_t>(in.dst - output), in.nbytes});
    }
    show(device_operand(device, output, nbytes, job.exports), output);
    job.otherwise = [this, moves](Team others) {
      pin_stage(others);
      return exchange(std::move(others), moves);
    };
  }
  job.rounds_otherwise = otherwise;
  rounds = rounds_of(job, team.stage, team.size());
  add(from_.stats.cuda_ipc, 1);
  return ipc(team, std::move(job));
}

}  // namespace rr
