#include "collective/gpu/device_phases.h"

#include <algorithm>

namespace rr {
namespace {

// At 25 GB/s 5 ms to send: the phases' latency of 0.1 ms is lost in it.
constexpr size_t kBlockNbytes = size_t{64} << 20;
constexpr size_t kAlign = 256;

size_t aligned(size_t nbytes) { return round_up(nbytes, kAlign); }

// How a block of elements lies in the scratch: the packed block, then what comes from each other member for the own
// segment.
struct Layout {
  Layout(size_t elements, size_t item, int members) : count(elements), size(members), itemsize(item) {
    segment_nbytes = aligned(part(0).count() * item);  // the first is the longest
  }
  Range part(int member) const { return segment(count, size, member, std::max<size_t>(1, 64 / itemsize)); }
  size_t nbytes() const { return aligned(count * itemsize) + static_cast<size_t>(size - 1) * segment_nbytes; }
  std::byte* own(std::byte* base, int member) const { return base + part(member).begin * itemsize; }
  std::byte* from(std::byte* base, int member, int me) const {
    const size_t index = static_cast<size_t>(member < me ? member : member - 1);
    return base + aligned(count * itemsize) + index * segment_nbytes;
  }

  size_t count;
  int size;
  size_t itemsize;
  size_t segment_nbytes = 0;
};

void add_message(DevicePhase& phase, int member, std::byte* at, size_t nbytes, bool is_outgoing) {
  if (nbytes != 0) phase.messages.push_back({member, at, nbytes, is_outgoing});
}

void add_block(DevicePhases& plan, const ReduceJob& job, Range range, int me, int size) {
  const size_t item = itemsize(job.reduction.dtype);
  const Layout layout(range.count(), item, size);
  std::byte* const base = plan.scratch.get();
  const Range mine = layout.part(me);
  DevicePhase pack;
  DevicePhase fold;
  DevicePhase unpack;
  pack.move.dtype = unpack.move.dtype = job.reduction.dtype;
  for_each_part(job.pieces, range, [&](const Piece& piece, size_t offset, size_t n, size_t position) {
    std::byte* const packed = base + (position - range.begin) * item;
    pack.move.parts.push_back({piece.src + offset * item, packed, n});
    unpack.move.parts.push_back({packed, piece.dst + offset * item, n});
  });
  DeviceFold one;
  one.count = mine.count();
  one.dsts = {layout.own(base, me)};
  for (int member = 0; member < size; ++member) {
    if (member == me) {
      one.srcs.push_back(layout.own(base, me));
      continue;
    }
    const size_t theirs = layout.part(member).count() * item;
    std::byte* const arrived = layout.from(base, member, me);
    one.srcs.push_back(arrived);
    add_message(pack, member, arrived, mine.count() * item, false);
    add_message(pack, member, layout.own(base, member), theirs, true);
    add_message(fold, member, layout.own(base, member), theirs, false);
    add_message(fold, member, layout.own(base, me), mine.count() * item, true);
  }
  fold.reduction = job.reduction;
  if (one.count != 0) fold.folds.push_back(std::move(one));
  plan.phases.push_back(std::move(pack));
  plan.phases.push_back(std::move(fold));
  plan.phases.push_back(std::move(unpack));
}

class MessagePath final : public Algorithm {
 public:
  MessagePath(Device& device, std::shared_ptr<DeviceMessages> messages, std::vector<int> world_ranks, int group,
              Team team, DevicePhases phases)
      : device_(device),
        messages_(std::move(messages)),
        world_ranks_(std::move(world_ranks)),
        group_(group),
        team_(std::move(team)),
        plan_(std::move(phases)) {}

  Step step() override {
    if (at_ == plan_.phases.size()) return Step::kDone;
    const auto current = device_.make_current();
    const DevicePhase& phase = plan_.phases[at_];
    if (state_ == State::kBegin) {
      if (!phase.move.parts.empty()) {
        device_.move(WorkStream::kCompute, phase.move.parts, phase.move.dtype, phase.move.dtype, 1.0);
      }
      if (!phase.folds.empty()) device_.fold(WorkStream::kCompute, phase.folds, phase.reduction);
      mark_ = device_.mark(WorkStream::kCompute);
      state_ = State::kWork;
      return Step::kProgress;
    }
    if (state_ == State::kWork) {
      if (!device_.passed(mark_)) return Step::kIdle;
      for (const DevicePhase::Message& message : phase.messages) start(message);
      state_ = State::kTravel;
      return Step::kProgress;
    }
    while (!under_way_.empty() && under_way_.back()->done()) under_way_.pop_back();
    if (!under_way_.empty()) return Step::kIdle;
    state_ = State::kBegin;
    return ++at_ == plan_.phases.size() ? Step::kDone : Step::kProgress;
  }

  bool needs(int rank) const override {
    if (at_ == plan_.phases.size() || rank == team_.rank()) return false;
    return std::find(team_.members.begin(), team_.members.end(), rank) != team_.members.end();
  }

 private:
  enum class State { kBegin, kWork, kTravel };

  void start(const DevicePhase::Message& message) {
    const int peer = world_ranks_[static_cast<size_t>(message.member)];
    under_way_.push_back(message.is_outgoing
                             ? messages_->send(message.at, message.nbytes, peer, group_, plan_.scratch)
                             : messages_->receive(message.at, message.nbytes, peer, group_, plan_.scratch));
  }

  Device& device_;
  std::shared_ptr<DeviceMessages> messages_;
  std::vector<int> world_ranks_;
  int group_;
  Team team_;
  DevicePhases plan_;
  size_t at_ = 0;
  State state_ = State::kBegin;
  Mark mark_;
  std::vector<std::unique_ptr<DeviceMessages::Message>> under_way_;
};

}  // namespace

DevicePhases message_allreduce(const std::vector<ReduceJob>& jobs, int me, int size, const DeviceScratch& scratch) {
  const auto for_each_block = [&](const auto& use) {
    for (const ReduceJob& job : jobs) {
      const size_t unit = kBlockNbytes / itemsize(job.reduction.dtype);
      const Range all = {0, job.element_count};
      for (size_t i = 0; i * unit < job.element_count; ++i) use(job, chunk(all, unit, i));
    }
  };
  DevicePhases plan;
  size_t nbytes = 0;
  for_each_block([&](const ReduceJob& job, Range range) {
    nbytes = std::max(nbytes, Layout(range.count(), itemsize(job.reduction.dtype), size).nbytes());
  });
  if (nbytes != 0) plan.scratch = scratch(nbytes);
  for_each_block([&](const ReduceJob& job, Range range) { add_block(plan, job, range, me, size); });
  return plan;
}

DevicePhases message_exchange(const ExchangeJob& job, int me, int size, const DeviceScratch& scratch) {
  DevicePhases plan;
  size_t nbytes = 0;
  for (const ExchangeJob::Outgoing& out : job.outgoing) nbytes += aligned(out.nbytes);
  for (const ExchangeJob::Incoming& in : job.incoming) nbytes += in.member == me ? 0 : aligned(in.nbytes);
  if (nbytes == 0) return plan;
  plan.scratch = scratch(nbytes);
  std::byte* next = plan.scratch.get();
  DevicePhase pack;
  DevicePhase unpack;
  const auto takes = [&](int r) { return job.takers.empty() || job.takers[static_cast<size_t>(r)]; };
  for (size_t block = 0; block < job.outgoing.size(); ++block) {
    const ExchangeJob::Outgoing& out = job.outgoing[block];
    if (out.nbytes == 0) continue;
    const bool is_own = static_cast<int>(block) == job.own_block;
    if (!is_own) pack.move.parts.push_back({out.src, next, out.nbytes});
    for (int r = 0; r < size; ++r) {
      if (r != me && takes(r) && (job.blocks == 1 || static_cast<int>(block) == r)) {
        add_message(pack, r, next, out.nbytes, true);
      }
    }
    next += aligned(out.nbytes);
  }
  for (const ExchangeJob::Incoming& in : job.incoming) {
    if (in.nbytes == 0) continue;
    if (in.member == me) {
      const std::byte* const src = job.outgoing[static_cast<size_t>(in.block)].src;
      if (src != in.dst) unpack.move.parts.push_back({src, in.dst, in.nbytes});
      continue;
    }
    add_message(pack, in.member, next, in.nbytes, false);
    unpack.move.parts.push_back({next, in.dst, in.nbytes});
    next += aligned(in.nbytes);
  }
  plan.phases.push_back(std::move(pack));
  if (!unpack.move.parts.empty()) plan.phases.push_back(std::move(unpack));
  return plan;
}

std::unique_ptr<Algorithm> message_path(Device& device, std::shared_ptr<DeviceMessages> messages,
                                        std::vector<int> world_ranks, int group, Team team, DevicePhases phases) {
  return std::make_unique<MessagePath>(device, std::move(messages), std::move(world_ranks), group, std::move(team),
                                       std::move(phases));
}

}  // namespace rr
