// The ranks meet in rounds of the staging area, which carry no data: first where the operands are and what each member
// wants, in as many rounds as that takes; then whether each leader could map them; then that each leader's work has
// passed. So counters, deaths and ranks that have joined are what they are in every staged algorithm.

#include "collective/gpu/ipc.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "base/errors.h"
#include "collective/gpu/ipc_tables.h"

namespace rr {
namespace {

constexpr size_t kLeastSlice = 32 << 10;  // bytes; for less the launch of a second kernel does not pay
constexpr size_t kLine = 128;             // bytes: no two GPUs write one line

enum class Mapped : uint64_t { kYes, kNotNow, kNever };

struct MapResult {
  Mapped mapped = Mapped::kYes;
  uint64_t nbytes = 0;  // of the text, which says why
  char text[1024] = {};
};

constexpr size_t kRoundsAfterTable = 2;

class Ipc final : public Staged {
 public:
  Ipc(Team team, IpcJob& job, size_t unit, size_t table_rounds)
      : Staged(on_host(std::move(team)), table_rounds + kRoundsAfterTable, std::max(unit, sizeof(MapResult)), true),
        job_(job),
        table_rounds_(table_rounds),
        tables_(job, members(), me(), unit) {}
  ~Ipc() override { job_.mappings->release(held_); }

  const std::optional<std::string>& refusal() const { return refusal_; }
  bool is_refused_for_good() const { return is_refused_for_good_; }

 private:
  // The rounds carry host memory.
  static Team on_host(Team team) {
    team.device = nullptr;
    return team;
  }
  size_t members() const { return static_cast<size_t>(team_.size()); }
  size_t me() const { return static_cast<size_t>(team_.me); }

  void put(size_t round) override {
    if (round < table_rounds_) {
      const Range part = tables_.own_part(round);
      if (!part.empty()) team_.writer->write(slot(team_.me, round), tables_.own() + part.begin, part.count());
    } else if (round == table_rounds_) {
      MapResult result;
      const auto refuse = [&result](const Error& error, Mapped how) {
        const std::string text = error.what();
        result.mapped = how;
        result.nbytes = std::min(text.size(), sizeof result.text);
        std::memcpy(result.text, text.data(), result.nbytes);
      };
      try {
        map();
      } catch (const DeviceBusyError& error) {
        refuse(error, Mapped::kNotNow);
      } catch (const Error& error) {
        refuse(error, Mapped::kNever);
      }
      std::memcpy(slot(team_.me, round), &result, sizeof result);
    }
  }

  bool may_put(size_t round) override {
    if (round < table_rounds_) return true;
    if (folded() < round) return false;
    return round == table_rounds_ || !is_issued_ || job_.device->passed(mark_);
  }

  void fold(size_t round) override {
    if (round < table_rounds_) {
      for (size_t i = 0; i < members(); ++i) {
        if (i != me()) tables_.read(i, round, slot(static_cast<int>(i), round));
      }
    } else if (round == table_rounds_) {
      for (size_t i = 0; i < members(); ++i) {
        MapResult result;
        std::memcpy(&result, slot(static_cast<int>(i), round), sizeof result);
        const bool says_more = result.mapped == Mapped::kNever && !is_refused_for_good_;
        if (result.mapped == Mapped::kYes || (refusal_ && !says_more)) continue;
        refusal_ = std::string(result.text, result.nbytes);
        is_refused_for_good_ = result.mapped == Mapped::kNever;
      }
      if (!refusal_) issue();
    }
  }

  void take(size_t) override {}

  std::byte* address(size_t member, size_t operand) {
    if (member == me()) return job_.own[operand];
    const DeviceOperand theirs = tables_.operand(member, operand);
    if (theirs.nbytes == 0) return nullptr;
    return hold(theirs.memory) + theirs.offset;
  }

  std::byte* hold(const DeviceExport& memory) {
    if (last_ != nullptr && memory.uid == last_uid_) return last_;
    auto found = addresses_.find(memory.uid);
    if (found == addresses_.end()) {
      if (held_.size() == DeviceMappings::kMost) {
        throw DeviceBusyError("the operation is on more than " + std::to_string(DeviceMappings::kMost) +
                              " allocations of other ranks; RINGREDUCE_GPU_PATH=nccl or staged does without");
      }
      found = addresses_.emplace(memory.uid, job_.mappings->hold(memory)).first;
      held_.push_back(memory.uid);
    }
    last_uid_ = memory.uid;
    return last_ = found->second;
  }

  // Everything that this rank will launch, so that nothing has been written when a mapping is refused.
  void map() {
    if (!tables_.leads()) return;
    size_t first_operand = 0;
    for (const ReduceJob& reduction : job_.reductions) {
      plan(reduction, first_operand);
      first_operand += 2 * reduction.pieces.size();
    }
    for (size_t member = 0; member < members() && job_.reductions.empty(); ++member) {
      if (tables_.leader_of(member) != me()) continue;
      tables_.for_each_copy_request(member, [&](const CopyRequest& copy_request) {
        if (copy_request.nbytes == 0) return;
        const std::byte* const src = address(copy_request.member, 0) + copy_request.src_offset;
        std::byte* const dst = address(member, 1) + copy_request.dst_offset;
        if (src != dst) moves_.push_back({src, dst, copy_request.nbytes});
      });
    }
  }

  // What of a reduction this rank folds, and for whom.
  void plan(const ReduceJob& reduction, size_t first_operand) {
    folds_.emplace_back();
    if (reduction.shape == ReduceShape::kReduceScatter) {
      for (size_t member = 0; member < members(); ++member) {
        if (tables_.leader_of(member) != me()) continue;
        const Range owned = reduction.owned[member];
        add_folds(reduction, first_operand, owned, {member}, owned.begin);
      }
      return;
    }
    std::vector<size_t> leaders;
    std::vector<size_t> takers;
    for (size_t member = 0; member < members(); ++member) {
      if (tables_.leader_of(member) == member) leaders.push_back(member);
      if (reduction.shape == ReduceShape::kAllreduce || static_cast<int>(member) == reduction.root) {
        takers.push_back(member);
      }
    }
    const size_t item = itemsize(reduction.reduction.dtype);
    if (reduction.element_count * item < leaders.size() * kLeastSlice) leaders.resize(1);
    const auto mine = std::find(leaders.begin(), leaders.end(), me());
    if (mine == leaders.end()) return;
    const Range slice = segment(reduction.element_count, static_cast<int>(leaders.size()),
                                static_cast<int>(mine - leaders.begin()), kLine / item);
    add_folds(reduction, first_operand, slice, takers, 0);
  }

  // base: the element of the reduction that the takers' outputs begin with.
  void add_folds(const ReduceJob& reduction, size_t first_operand, Range range, const std::vector<size_t>& takers,
                 size_t base) {
    const size_t item = itemsize(reduction.reduction.dtype);
    for_each_part(reduction.pieces, range, [&](const Piece& piece, size_t offset, size_t count, size_t) {
      const size_t operand = first_operand + 2 * static_cast<size_t>(&piece - reduction.pieces.data());
      DeviceFold fold;
      fold.count = count;
      for (size_t i = 0; i < members(); ++i) fold.srcs.push_back(address(i, operand) + offset * item);
      for (const size_t i : takers) fold.dsts.push_back(address(i, operand + 1) + (offset - base) * item);
      folds_.back().push_back(std::move(fold));
    });
  }

  void issue() {
    for (size_t k = 0; k < folds_.size(); ++k) {
      if (folds_[k].empty()) continue;
      job_.device->fold(WorkStream::kCompute, folds_[k], job_.reductions[k].reduction);
      is_issued_ = true;
    }
    if (!moves_.empty()) {
      job_.device->move(WorkStream::kCompute, moves_, DType::kUInt8, DType::kUInt8, 1.0);
      is_issued_ = true;
    }
    if (is_issued_) mark_ = job_.device->mark(WorkStream::kCompute);
  }

  IpcJob& job_;
  size_t table_rounds_;
  IpcTables tables_;
  std::unordered_map<uint64_t, std::byte*> addresses_;  // of the allocations that are held, by uid
  std::vector<uint64_t> held_;                          // their uids
  uint64_t last_uid_ = 0;
  std::byte* last_ = nullptr;
  std::vector<std::vector<DeviceFold>> folds_;  // by reduction
  std::vector<DevicePart> moves_;
  std::optional<std::string> refusal_;
  bool is_refused_for_good_ = false;
  bool is_issued_ = false;
  Mark mark_;
};

// The rounds above, and the way otherwise where a mapping was refused.
class IpcPath final : public Algorithm {
 public:
  IpcPath(Team team, IpcJob job) : team_(std::move(team)), job_(std::move(job)) {
    const size_t tables = IpcTables::rounds(job_, team_.stage, team_.size());
    rounds_ = tables + kRoundsAfterTable;
    ipc_ = std::make_unique<Ipc>(team_, job_, IpcTables::unit(job_, team_.stage, team_.size()), tables);
  }

  Step step() override {
    if (otherwise_ != nullptr) return otherwise_->step();
    const Step step = ipc_->step();
    if (step != Step::kDone) return step;
    if (ipc_->refusal() && !job_.is_forced) {
      job_.refused(*ipc_->refusal(), ipc_->is_refused_for_good());
      Team team = team_;
      team.first_round += rounds_;
      otherwise_ = job_.otherwise(std::move(team));
      return Step::kProgress;
    }
    if (ipc_->refusal()) failure_ = "RINGREDUCE_GPU_PATH=ipc cannot be taken: " + *ipc_->refusal();
    skip_rounds(team_.stage, team_.rank(), team_.first_round, rounds_ + job_.rounds_otherwise);
    team_.ring_others();
    return Step::kDone;
  }

  bool needs(int rank) const override { return otherwise_ != nullptr ? otherwise_->needs(rank) : ipc_->needs(rank); }

  std::string failure() const override { return failure_; }

 private:
  Team team_;
  IpcJob job_;
  size_t rounds_ = 0;
  std::unique_ptr<Ipc> ipc_;
  std::unique_ptr<Algorithm> otherwise_;
  std::string failure_;
};

}  // namespace

size_t rounds_of(const IpcJob& job, const Stage& stage, int members) {
  return IpcTables::rounds(job, stage, members) + kRoundsAfterTable + job.rounds_otherwise;
}

std::unique_ptr<Algorithm> ipc(Team team, IpcJob job) {
  return std::make_unique<IpcPath>(std::move(team), std::move(job));
}

}  // namespace rr
