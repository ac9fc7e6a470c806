#include "planner/gpu/device_levels.h"

#include <algorithm>

#include "collective/linked.h"
#include "collective/schedule/execution.h"
#include "planner/gpu/stream_copies.h"
#include "planner/two_level.h"

namespace rr {
namespace {

// Of a tensor. 0.16 ms at 50 GB/s; in less the meetings of the ranks would show.
constexpr size_t kPieceNbytes = size_t{8} << 20;

class Builder {
 public:
  Builder(const DeviceLevels& levels, const DeviceTensor& tensor, const Reduction& reduction, size_t& rounds)
      : levels_(levels),
        shown_(tensor),
        tensor_(tensor.piece),
        reduction_(reduction),
        item_(itemsize(reduction.dtype)),
        here_(levels.team->narrowed(levels.hosts->here())),
        rounds_(rounds) {}

  std::unique_ptr<Algorithm> build(Codec codec) {
    const size_t align = alignment(codec, item_);
    const std::vector<Range> pieces = cut(tensor_.count, item_, kPieceNbytes, align);
    LinkedReduction between;
    between.reduction = reduction_;
    between.reduction.prescale = 1.0;
    between.codec = codec;
    for (const Range& piece : pieces) {
      owned_.emplace_back();
      for (int s = 0; s < here_.size(); ++s) owned_.back().push_back(segment(piece.count(), here_.size(), s, align));
      const Range& mine = owned_.back()[me()];
      std::byte* const host = levels_.arena->allocate(mine.count() * item_);
      between.pieces.push_back({host, host, mine.count()});
    }
    const bool rings = codec == Codec::kNone;
    Schedule schedule;
    HostPipeline here(
        schedule, pieces.size(), pieces_under_way(rings, levels_.hosts->count()) + 2,
        [&](size_t k) { return reduce(k, pieces[k], between.pieces[k].dst); },
        [&](size_t k) { return gather(k, pieces[k], between.pieces[k].dst); });
    between.ready = here.reduced();
    const Team leads = same_place(*levels_.team, *levels_.hosts, here_.me);
    here.share_after(rings ? ring(schedule, leads, between) : pairwise(schedule, leads, between));
    return execute(*levels_.team, std::move(schedule));
  }

 private:
  size_t me() const { return static_cast<size_t>(here_.me); }

  DevicePart own_slice(size_t k, const Range& piece) const {
    const Range& mine = owned_[k][me()];
    return {nullptr, tensor_.dst + (piece.begin + mine.begin) * item_, mine.count() * item_};
  }

  // In the rounds of the stage that come next. otherwise: the same through the stage.
  std::unique_ptr<Algorithm> meet(IpcJob job, std::function<std::unique_ptr<Algorithm>(Team)> otherwise) {
    Team team = here_;
    team.first_round += rounds_;
    if (!levels_.is_mappable) {
      rounds_ += job.rounds_otherwise;
      levels_.pin(team);
      return otherwise(std::move(team));
    }
    rounds_ += rounds_of(job, team.stage, team.size());
    job.device = levels_.device.get();
    job.mappings = levels_.mappings;
    job.refused = levels_.refused;
    job.otherwise = [otherwise = std::move(otherwise), pin = levels_.pin](Team others) {
      pin(others);
      return otherwise(std::move(others));
    };
    return ipc(std::move(team), std::move(job));
  }

  void show_input(IpcJob& job, const std::byte* data, size_t nbytes) const {
    show(job, shown_.src, tensor_.src, const_cast<std::byte*>(data), nbytes);
  }
  void show_output(IpcJob& job, std::byte* data, size_t nbytes) const {
    show(job, shown_.dst, tensor_.dst, data, nbytes);
  }
  // A part of the tensor that lies at `begin`.
  static void show(IpcJob& job, DeviceOperand operand, const std::byte* begin, std::byte* data, size_t nbytes) {
    operand.offset += static_cast<uint64_t>(data - begin);
    operand.nbytes = nbytes;
    job.operands.push_back(operand);
    job.own.push_back(data);
  }

  std::unique_ptr<Algorithm> reduce(size_t k, const Range& piece, std::byte* host) {
    const DevicePart slice = own_slice(k, piece);
    ReduceJob job;
    job.shape = ReduceShape::kReduceScatter;
    job.reduction = bare(reduction_);
    job.reduction.prescale = reduction_.prescale;
    job.element_count = piece.count();
    job.pieces = {{tensor_.src + piece.begin * item_, slice.dst, piece.count()}};
    job.owned = owned_[k];
    IpcJob meeting;
    meeting.reductions = {job};
    meeting.rounds_otherwise = rounds_of(job, here_.stage);
    show_input(meeting, job.pieces[0].src, piece.count() * item_);
    show_output(meeting, slice.dst, slice.count);
    std::vector<std::unique_ptr<Algorithm>> parts;
    parts.push_back(meet(std::move(meeting), [job](Team team) { return two_shot(std::move(team), job); }));
    StreamCopies down(*levels_.device, WorkStream::kToHost);
    parts.push_back(down.issue({{slice.dst, host, slice.count}}));
    parts.push_back(down.await_last());
    return sequence(std::move(parts));
  }

  std::unique_ptr<Algorithm> gather(size_t k, const Range& piece, std::byte* host) {
    const DevicePart slice = own_slice(k, piece);
    std::byte* const whole = tensor_.dst + piece.begin * item_;
    ExchangeJob job;
    job.outgoing.push_back({slice.dst, slice.count});
    job.sources.assign(static_cast<size_t>(here_.size()), true);
    IpcJob meeting;
    for (size_t s = 0; s < owned_[k].size(); ++s) {
      const Range& theirs = owned_[k][s];
      job.largest_nbytes = std::max(job.largest_nbytes, theirs.count() * item_);
      if (s == me()) continue;
      job.incoming.push_back({static_cast<int>(s), 0, whole + theirs.begin * item_, theirs.count() * item_, 0});
      meeting.copy_requests.push_back({s, 0, theirs.begin * item_, theirs.count() * item_});
    }
    meeting.rounds_otherwise = rounds_of(job, here_.stage);
    show_output(meeting, slice.dst, slice.count);
    show_output(meeting, whole, piece.count() * item_);
    std::vector<std::unique_ptr<Algorithm>> parts;
    StreamCopies up(*levels_.device, WorkStream::kToDevice);
    parts.push_back(up.issue({{host, slice.dst, slice.count}}));
    parts.push_back(up.await_last());
    parts.push_back(meet(std::move(meeting), [job](Team team) { return exchange(std::move(team), job); }));
    return sequence(std::move(parts));
  }

  const DeviceLevels& levels_;
  const DeviceTensor& shown_;
  const Piece& tensor_;
  const Reduction& reduction_;
  size_t item_;
  Team here_;
  size_t& rounds_;
  std::vector<std::vector<Range>> owned_;  // by piece, elements of it that each rank here reduces between hosts
};

}  // namespace

bool has_levels(const Hosts& hosts) {
  const size_t ranks = hosts.here().size();
  return ranks > 1 && std::all_of(hosts.members.begin(), hosts.members.end(),
                                  [ranks](const std::vector<int>& members) { return members.size() == ranks; });
}

std::unique_ptr<Algorithm> device_levels(const DeviceLevels& levels, const DeviceTensor& tensor,
                                         const Reduction& reduction, Codec codec, size_t& rounds) {
  return Builder(levels, tensor, reduction, rounds).build(codec);
}

}  // namespace rr
