// Group: operations on memory of a GPU, by the road that the entry names.

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"
#include "engine/span.h"

namespace rr {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLeastBlock = 1 << 20;

bool is_from_root(Kind kind) { return kind == Kind::kBroadcast || kind == Kind::kScatter; }

// Issues copies to a lane and is done when they have passed.
class LaneCopies final : public Algorithm {
 public:
  LaneCopies(Device& device, Lane lane, std::vector<DevicePart> parts)
      : device_(device), lane_(lane), parts_(std::move(parts)) {}

  Step step() override {
    if (is_issued_) return device_.passed(mark_) ? Step::kDone : Step::kIdle;
    for (const DevicePart& part : parts_) {
      if (part.count != 0) device_.copy(lane_, part.dst, part.src, part.count);
    }
    mark_ = device_.mark(lane_);
    is_issued_ = true;
    return Step::kProgress;
  }

  bool needs(int) const override { return false; }

 private:
  Device& device_;
  Lane lane_;
  std::vector<DevicePart> parts_;
  Mark mark_;
  bool is_issued_ = false;
};

}  // namespace

PinnedArena::~PinnedArena() {
  for (Block& block : blocks_) {
    try {
      device_.unpin(block.memory.get());
    } catch (const Error&) {
      continue;  // a broken context has let go of everything
    }
  }
}

std::byte* PinnedArena::allocate(size_t nbytes) {
  nbytes = round_up(nbytes, static_cast<size_t>(FreeOutput::kAlignment));
  for (Block& block : blocks_) {
    if (block.nbytes - block.used < nbytes) continue;
    block.used += nbytes;
    return block.memory.get() + block.used - nbytes;
  }
  Block block = {new_output(round_up(std::max(nbytes, kLeastBlock), kPage)), 0, nbytes};
  block.nbytes = round_up(std::max(nbytes, kLeastBlock), kPage);
  device_.pin(block.memory.get(), block.nbytes);
  blocks_.push_back(std::move(block));
  return blocks_.back().memory.get();
}

void PinnedArena::clear() {
  for (Block& block : blocks_) block.used = 0;
}

// Executor lock held. What the lanes have been told to do goes on in the memory of operations that have failed.
void Group::drop_active() {
  // Kernels of NCCL's wait for ranks that will not come.
  if (active_ != nullptr && nccl_ != nullptr) nccl_->abort();
  context_.abandon(std::move(active_), active_members_);
  active_.reset();
  active_members_.clear();
}

void Group::note_road(const Entry& entry) {
  const Algo road = static_cast<Algo>(entry.algorithm);
  if (std::find(noted_roads_.begin(), noted_roads_.end(), road) != noted_roads_.end()) return;
  noted_roads_.push_back(road);
  const std::string text = here() + "] " + context_.device()->name() + ": operations go by the road '" +
                           road_name(road) + "': " + ledger_.road_of(entry).reason;
  context_.log().info(text);
}

// Lanes copy from and to the stage of all ranks here.
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
  job.mappings = &context_.device_mappings();
  job.is_forced = context_.settings().cuda_road == "ipc";
  job.refused = [this](const std::string& why) {
    board_.header().unmappable.store(1);
    add(context_.stats().cuda_staged, 1);
    if (std::find(noted_roads_.begin(), noted_roads_.end(), Algo::kAuto) != noted_roads_.end()) return;
    noted_roads_.push_back(Algo::kAuto);
    context_.log().warning(here() +
                           "] a GPU cannot map another rank's memory, so operations leave the road 'ipc': " + why);
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
      job.wishes.push_back(
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

// Stand-ins of the operations, in pinned host memory: copied from the GPU, reduced or moved like any other, copied
// back.
std::unique_ptr<Algorithm> Group::build_in_host_memory(const std::vector<OperationPtr>& members, const Team& team,
                                                       size_t& rounds) {
  Device& device = *context_.device();
  if (arena_ == nullptr) arena_ = std::make_unique<PinnedArena>(device);
  arena_->clear();
  std::vector<DevicePart> down;
  std::vector<DevicePart> up;
  std::vector<OperationPtr> stand_ins;
  for (const OperationPtr& member : members) {
    auto one = std::make_shared<Operation>();
    one->kind = member->kind;
    one->signature = member->signature;
    one->signature.place = Place::kHost;
    one->splits = member->splits;
    one->name = member->name;
    one->number = member->number;
    one->ticket = member->ticket;
    one->arena = arena_.get();
    for (const TensorView& src : member->srcs) {
      one->srcs.push_back(src);
      one->srcs.back().place = Place::kHost;
      one->srcs.back().data = arena_->allocate(src.nbytes());
      const bool gives = member->signature.root == rank_ || !is_from_root(member->kind);
      if (gives) down.push_back({src.data, one->srcs.back().data, src.nbytes()});
    }
    for (size_t i = 0; i < member->dsts.size() && !is_ragged(member->kind); ++i) {
      const TensorView& dst = member->dsts[i];
      const bool in_place =
          i < member->srcs.size() && member->srcs[i].data == dst.data && member->srcs[i].nbytes() == dst.nbytes();
      one->dsts.push_back(dst);
      one->dsts.back().place = Place::kHost;
      one->dsts.back().data = in_place ? one->srcs[i].data : arena_->allocate(dst.nbytes());
      if (member->kind != Kind::kReduce || member->signature.root == rank_) {
        up.push_back({one->dsts.back().data, dst.data, dst.nbytes()});
      }
    }
    stand_ins.push_back(std::move(one));
  }
  Parts parts;
  parts.push_back(std::make_unique<LaneCopies>(device, Lane::kToHost, std::move(down)));
  parts.push_back(build_across_hosts(stand_ins, team, hosts_.narrowed(team.members), rounds));
  Operation& first = *members.front();
  if (is_ragged(first.kind)) {
    first.counts = stand_ins.front()->counts;
    first.output_nbytes = stand_ins.front()->output_nbytes;
    const bool takes = first.kind != Kind::kGather || first.signature.root == rank_;
    if (takes) up.push_back({stand_ins.front()->dsts[0].data, allocate_output(first), first.output_nbytes});
  }
  parts.push_back(std::make_unique<LaneCopies>(device, Lane::kToDevice, std::move(up)));
  return sequence(std::move(parts));
}

}  // namespace rr
