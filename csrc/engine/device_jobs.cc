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
constexpr size_t kPieceNbytes = 8 << 20;  // at 50 GB/s 0.16 ms each way, which the first and the last piece show

bool is_from_root(Kind kind) { return kind == Kind::kBroadcast || kind == Kind::kScatter; }

// Copies on a lane, of which others wait for parts.
class LaneCopies {
 public:
  LaneCopies(Device& device, Lane lane) : device_(device), lane_(lane) {}
  // A step that issues the copies and does not wait.
  std::unique_ptr<Algorithm> issue(std::vector<DevicePart> parts) {
    marks_->emplace_back();
    return once([&device = device_, lane = lane_, parts = std::move(parts), marks = marks_, at = marks_->size() - 1] {
      for (const DevicePart& part : parts) {
        if (part.count != 0) device.copy(lane, part.dst, part.src, part.count);
      }
      (*marks)[at] = device.mark(lane);
    });
  }
  // Done when the copies of issue() number `index`, and those before, have been made.
  std::unique_ptr<Algorithm> await(size_t index) const { return std::make_unique<Await>(device_, marks_, index); }
  size_t issues() const { return marks_->size(); }

 private:
  using Marks = std::shared_ptr<std::vector<Mark>>;
  class Await final : public Algorithm {
   public:
    Await(Device& device, Marks marks, size_t index) : device_(device), marks_(std::move(marks)), index_(index) {}
    Step step() override { return device_.passed((*marks_)[index_]) ? Step::kDone : Step::kIdle; }
    bool needs(int) const override { return false; }

   private:
    Device& device_;
    Marks marks_;
    size_t index_;
  };

  Device& device_;
  Lane lane_;
  Marks marks_ = std::make_shared<std::vector<Mark>>();
};

TensorView on_host(TensorView tensor, std::byte* data) {
  tensor.place = Place::kHost;
  tensor.data = data;
  return tensor;
}

TensorView part_of(TensorView tensor, Range range) {
  tensor.data += range.begin * itemsize(tensor.dtype);
  tensor.count = tensor.dims[0] = range.count();
  tensor.ndim = 1;
  return tensor;
}

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
  const bool is_ipc = static_cast<Algo>(board_.entry(cursor_).algorithm) == Algo::kIpc;
  if (!active_members_.empty() && active_members_.front()->signature.place == Place::kDevice) {
    context_.abandon(std::move(active_), active_members_, is_ipc);
  }
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
  job.mappings = context_.device_mappings();
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

// A stand-in of an operation, in pinned host memory, without tensors.
OperationPtr Group::stand_in(const Operation& operation) const {
  auto one = std::make_shared<Operation>();
  one->kind = operation.kind;
  one->signature = operation.signature;
  one->signature.place = Place::kHost;
  one->splits = operation.splits;
  one->name = operation.name;
  one->number = operation.number;
  one->ticket = operation.ticket;
  one->arena = arena_.get();
  return one;
}

// Copied from the GPU, reduced or moved as host memory is, copied back. A long tensor of an all-reduce goes in pieces:
// all are issued to the lane at once, and while one is between the hosts the next ones come from the GPU and the ones
// before go back. Where it is cut depends on its length alone.
std::unique_ptr<Algorithm> Group::build_in_host_memory(const std::vector<OperationPtr>& members, const Team& team,
                                                       size_t& rounds) {
  Device& device = *context_.device();
  if (arena_ == nullptr) arena_ = std::make_unique<PinnedArena>(device);
  arena_->clear();
  struct Unit {
    std::vector<OperationPtr> operations;
    std::vector<DevicePart> down;
    std::vector<DevicePart> up;
  };
  std::vector<Unit> units(1);  // the first is what is not cut
  for (const OperationPtr& member : members) {
    const Kind kind = member->kind;
    const bool is_root = member->signature.root == rank_;
    const OperationPtr whole = stand_in(*member);
    for (size_t i = 0; i < std::max(member->srcs.size(), member->dsts.size()); ++i) {
      const bool has_src = i < member->srcs.size();
      const bool has_dst = i < member->dsts.size() && !is_ragged(kind);
      const TensorView src = has_src ? member->srcs[i] : TensorView();
      const TensorView dst = has_dst ? member->dsts[i] : TensorView();
      const bool in_place = has_src && has_dst && src.data == dst.data && src.nbytes() == dst.nbytes();
      const TensorView input = on_host(src, has_src ? arena_->allocate(src.nbytes()) : nullptr);
      const TensorView output = on_host(dst, in_place  ? input.data
                                             : has_dst ? arena_->allocate(dst.nbytes())
                                                       : nullptr);
      const bool gives = has_src && (is_root || !is_from_root(kind));
      const bool takes = has_dst && (is_root || kind != Kind::kReduce);
      const size_t piece = kPieceNbytes / itemsize(src.dtype);
      const size_t pieces = kind == Kind::kAllreduce && src.count >= 2 * piece ? divide_up(src.count, piece) : 1;
      for (size_t k = 0; k < pieces; ++k) {
        const auto cut = [&](const TensorView& tensor) {
          return pieces == 1 ? tensor : part_of(tensor, chunk({0, tensor.count}, piece, k));
        };
        if (pieces != 1) {
          units.emplace_back();
          units.back().operations.push_back(stand_in(*member));
        }
        Unit& unit = pieces == 1 ? units.front() : units.back();
        Operation& one = pieces == 1 ? *whole : *unit.operations.back();
        if (has_src) one.srcs.push_back(cut(input));
        if (has_dst) one.dsts.push_back(cut(output));
        if (gives) unit.down.push_back({cut(src).data, cut(input).data, cut(src).nbytes()});
        if (takes) unit.up.push_back({cut(output).data, cut(dst).data, cut(dst).nbytes()});
      }
    }
    if (kind != Kind::kAllreduce || !whole->srcs.empty()) units.front().operations.push_back(whole);
  }
  if (units.front().operations.empty()) units.erase(units.begin());

  Parts parts;
  LaneCopies downs(device, Lane::kToHost);
  LaneCopies ups(device, Lane::kToDevice);
  for (Unit& unit : units) parts.push_back(downs.issue(std::move(unit.down)));
  const Hosts hosts = hosts_.narrowed(team.members);
  for (size_t k = 0; k < units.size(); ++k) {
    parts.push_back(downs.await(k));
    parts.push_back(build_across_hosts(units[k].operations, team, hosts, rounds));
    Operation& first = *members.front();
    if (is_ragged(first.kind)) {
      const Operation& one = *units[k].operations.front();
      first.counts = one.counts;
      first.output_nbytes = one.output_nbytes;
      const bool takes = first.kind != Kind::kGather || first.signature.root == rank_;
      if (takes) units[k].up.push_back({one.dsts[0].data, allocate_output(first), first.output_nbytes});
    }
    parts.push_back(ups.issue(std::move(units[k].up)));
  }
  parts.push_back(ups.await(ups.issues() - 1));
  return sequence(std::move(parts));
}

}  // namespace rr
