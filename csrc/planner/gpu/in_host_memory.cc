// DevicePlanner: operations on memory of GPUs over several hosts, by way of pinned host memory.

#include <algorithm>

#include "planner/across_hosts.h"
#include "planner/exchange_plan.h"
#include "planner/gpu/device_planner.h"
#include "planner/gpu/stream_copies.h"
#include "planner/two_level_allreduce.h"

namespace rr {
namespace {

// Bytes of a tensor that GPUs of a host reduce before it leaves the host.
constexpr size_t kLeastLong = size_t{1} << 20;
// At 50 GB/s 0.16 ms each way, which the first and the last piece show.
constexpr size_t kPieceNbytes = size_t{8} << 20;

bool is_from_root(Kind kind) { return kind == Kind::kBroadcast || kind == Kind::kScatter; }

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

// An operation on host memory in place of one on GPU memory. Its tensors are still to be set.
OperationPtr DevicePlanner::host_copy(const Operation& operation) const {
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

DeviceLevels DevicePlanner::levels(const Team& team, const Hosts& hosts) {
  DeviceLevels both;
  both.device = from_.gpu.shared_device();
  both.mappings = from_.gpu.device_mappings();
  both.arena = arena_.get();
  both.team = &team;
  both.hosts = &hosts;
  both.is_mappable = from_.control.header().unmappable.load() == 0;
  both.refused = on_refusal();
  both.pin = [this](Team& others) { pin_stage(others); };
  return both;
}

// Copied from the GPU, reduced or moved as host memory is, copied back. A long tensor of an all-reduce goes in pieces:
// all are issued to the work stream at once, and while one is between the hosts the next ones come from the GPU and the
// ones before go back. Where it is cut depends on its length, and on whether all ranks' memory of it can be mapped.
std::unique_ptr<Algorithm> DevicePlanner::in_host_memory(const std::vector<OperationPtr>& members, const Team& team,
                                                         size_t& rounds) {
  Device& device = *from_.gpu.device();
  if (arena_ == nullptr) arena_ = std::make_unique<PinnedArena>(device);
  arena_->clear();
  struct Unit {
    std::vector<OperationPtr> operations;
    std::vector<DevicePart> down;
    std::vector<DevicePart> up;
  };
  std::vector<Unit> units(1);  // the first is what is not cut
  const Hosts hosts = from_.hosts.narrowed(team.members);
  struct Long {
    DeviceTensor tensor;
    Reduction reduction;
    Codec codec;
  };
  std::vector<Long> longs;
  const bool two_levels = has_levels(hosts);
  for (const OperationPtr& member : members) {
    const Kind kind = member->kind;
    bool maps = two_levels;  // this one: which others share the bucket is a matter of timing
    for (const int r : team.members) maps &= (from_.announced(*member, r).can & kCanExport) != 0;
    const bool is_root = member->signature.root == from_.rank;
    const OperationPtr whole = host_copy(*member);
    for (size_t i = 0; i < std::max(member->srcs.size(), member->dsts.size()); ++i) {
      if (maps && kind == Kind::kAllreduce && member->srcs[i].nbytes() >= kLeastLong) {
        Reduction reduction = reduction_of(member->signature, from_.size());
        reduction.dtype = member->srcs[i].dtype;
        if (foldable_in_place(reduction)) {
          const Piece tensor = {member->srcs[i].data, member->dsts[i].data, member->srcs[i].count};
          const DeviceOperand& src = member->operands[i];
          const DeviceOperand& dst = member->operands[member->srcs.size() + i];
          longs.push_back({{tensor, src, dst}, reduction, member->signature.codec});
          continue;
        }
      }
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
          units.back().operations.push_back(host_copy(*member));
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

  std::vector<std::unique_ptr<Algorithm>> parts;
  StreamCopies downs(device, WorkStream::kToHost);
  StreamCopies ups(device, WorkStream::kToDevice);
  for (Unit& unit : units) parts.push_back(downs.issue(std::move(unit.down)));
  for (size_t k = 0; k < units.size(); ++k) {
    parts.push_back(downs.await(k));
    parts.push_back(across_hosts(from_, units[k].operations, team, hosts, rounds));
    Operation& first = *members.front();
    if (is_ragged(first.kind)) {
      const Operation& one = *units[k].operations.front();
      first.counts = one.counts;
      first.output_nbytes = one.output_nbytes;
      const bool takes = first.kind != Kind::kGather || first.signature.root == from_.rank;
      if (takes) units[k].up.push_back({one.dsts[0].data, allocate_output(from_, first), first.output_nbytes});
    }
    parts.push_back(ups.issue(std::move(units[k].up)));
  }
  if (!units.empty()) parts.push_back(ups.await_last());
  if (!longs.empty()) add(from_.stats.cuda_ipc, 1);
  const DeviceLevels on_two_levels = levels(team, hosts);
  for (const Long& one : longs)
    parts.push_back(device_levels(on_two_levels, one.tensor, one.reduction, one.codec, rounds));
  return sequence(std::move(parts));
}

}  // namespace rr
