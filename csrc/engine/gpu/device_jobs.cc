// Group: operations on memory of a GPU, by the path that the entry names.

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/gpu/device_levels.h"
#include "engine/group.h"

namespace rr {

// Executor lock held. What the work streams have been told to do goes on in the memory of operations that have failed.
void Group::drop_active() {
  // Kernels of NCCL's wait for ranks that will not come.
  if (active_ != nullptr && nccl_ != nullptr) nccl_->abort();
  if (active_ != nullptr && active_members_.front()->signature.place == Place::kDevice) {
    const Algo path = static_cast<Algo>(control_.entry(cursor_).algorithm);
    const bool is_ipc = path == Algo::kIpc || (path == Algo::kStaged && hosts_.several());
    context_.abandon(std::move(active_), active_members_, is_ipc);
  }
  active_.reset();
  active_members_.clear();
}

void Group::log_path(const Entry& entry) {
  const Algo path = static_cast<Algo>(entry.algorithm);
  if (std::find(logged_paths_.begin(), logged_paths_.end(), path) != logged_paths_.end()) return;
  logged_paths_.push_back(path);
  // The first host chooses it, and only its ranks know all that the choice depends on.
  const std::string reason = hosts_.mine == 0 ? negotiation_.gpu_path_of(entry).reason : "the first host's choice";
  context_.log().info(here() + "] " + context_.device()->name() + ": operations go by the path '" + path_name(path) +
                      "': " + reason);
}

// Work streams copy from and to the stage of all ranks here.
void Group::pin_stage(Team& team) {
  team.device = context_.device();
  if (pinned_stage_ != nullptr) return;
  const Stage& stage = team.stage;
  team.device->pin(stage.slots, static_cast<size_t>(size()) * stage.slot_count * stage.slot_nbytes);
  pinned_stage_ = stage.slots;
}

std::unique_ptr<Algorithm> Group::build_ipc(const std::vector<OperationPtr>& members, const Team& team,
                                            size_t& rounds) {
  Operation& first = *members.front();
  Device& device = *context_.device();
  add(context_.stats().cuda_ipc, 1);
  IpcJob job;
  job.device = &device;
  job.mappings = context_.device_mappings();
  job.is_forced = context_.settings().gpu_path == "ipc";
  const auto refused = on_refusal(control_, context_, logged_paths_, here() + "]");
  job.refused = [this, refused](const std::string& why) {
    add(context_.stats().cuda_staged, 1);
    refused(why);
  };
  const auto show = [&](const DeviceOperand& operand, std::byte* address) {
    job.operands.push_back(operand);
    job.own.push_back(address);
  };
  size_t otherwise = 0;
  if (first.kind == Kind::kAllreduce) {
    job.reductions = allreduce_jobs(members);
    for (const ReduceJob& reduction : job.reductions) otherwise += rounds_of(reduction, team.stage, team.size());
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
      return two_shots(std::move(others), reductions);
    };
  } else if (first.kind == Kind::kReduce || first.kind == Kind::kReduceScatter) {
    job.reductions = {reduce_job(first)};
    otherwise = rounds_of(job.reductions[0], team.stage, team.size());
    show(first.operands[0], first.srcs[0].data);
    show(first.operands[1], first.dsts[0].data);
    job.otherwise = [this, reductions = job.reductions](Team others) {
      pin_stage(others);
      return two_shots(std::move(others), reductions);
    };
  } else {
    const ExchangeJob moves = exchange_job(first);
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
    show(device_operand(device, output, nbytes), output);
    job.otherwise = [this, moves](Team others) {
      pin_stage(others);
      return exchange(std::move(others), moves);
    };
  }
  job.rounds_otherwise = otherwise;
  rounds = rounds_of(job, team.stage, team.size());
  return ipc(team, std::move(job));
}

}  // namespace rr
