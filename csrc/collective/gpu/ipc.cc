// The ranks meet in rounds of the staging area, which carry no data: first where the operands are and what each member
// wants, in as many rounds as that takes; then whether each leader could map them; then that each leader's work has
// passed. So counters, deaths and ranks that have joined are what they are in every staged algorithm.

#include "collective/gpu/ipc.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "base/errors.h"

namespace rr {
namespace {

constexpr size_t kLeastSlice = 32 << 10;  // bytes; for less the launch of a second kernel does not pay
constexpr size_t kLine = 128;             // bytes: no two GPUs write one line

// What each member says of itself, followed by its operands and its copy requests.
struct TableHead {
  DeviceId gpu;
  uint64_t operands = 0;
  uint64_t copy_requests = 0;
};

enum class Mapped : uint64_t { kYes, kNotNow, kNever };

struct MapResult {
  Mapped mapped = Mapped::kYes;
  uint64_t nbytes = 0;  // of the text, which says why
  char text[1024] = {};
};

size_t table_nbytes(const IpcJob& job, int members) {
  const size_t copy_requests = job.reductions.empty() ? static_cast<size_t>(members) : 0;
  return sizeof(TableHead) + job.operands.size() * sizeof(DeviceOperand) + copy_requests * sizeof(CopyRequest);
}

size_t table_unit(const IpcJob& job, const Stage& stage, int members) {
  return std::min(table_nbytes(job, members), stage.slot_nbytes);
}

size_t table_rounds(const IpcJob& job, const Stage& stage, int members) {
  return divide_up(table_nbytes(job, members), table_unit(job, stage, members));
}

constexpr size_t kRoundsAfterTable = 2;

class Ipc final : public Staged {
 public:
  Ipc(Team team, IpcJob& job, size_t unit, size_t tables)
      : Staged(on_host(std::move(team)), tables + kRoundsAfterTable, std::max(unit, sizeof(MapResult)), true),
        job_(job),
        unit_(unit),
        tables_(tables),
        gpus_(members()),
        texts_(members()) {
    write_own();
  }
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

  void write_own() {
    const TableHead head = {job_.device->id(), job_.operands.size(), job_.copy_requests.size()};
    std::vector<std::byte>& text = texts_[me()];
    text.resize(sizeof head + job_.operands.size() * sizeof(DeviceOperand) +
                job_.copy_requests.size() * sizeof(CopyRequest));
    std::memcpy(text.data(), &head, sizeof head);
    size_t at = sizeof head;
    const auto append = [&text, &at](const auto& list) {
      const size_t nbytes = list.size() * sizeof list[0];
      if (nbytes != 0) std::memcpy(text.data() + at, list.data(), nbytes);
      at += nbytes;
    };
    append(job_.operands);
    append(job_.copy_requests);
    gpus_[me()] = head.gpu;
  }

  void put(size_t round) override {
    if (round < tables_) {
      const Range part = chunk({0, texts_[me()].size()}, unit_, round);
      if (!part.empty()) team_.writer->write(slot(team_.me, round), texts_[me()].data() + part.begin, part.count());
    } else if (round == tables_) {
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
    if (round < tables_) return true;
    if (folded() < round) return false;
    return round == tables_ || !is_issued_ || job_.device->passed(mark_);
  }

  void fold(size_t round) override {
    if (round < tables_) {
      for (size_t i = 0; i < members(); ++i) {
        if (i != me()) read(i, round);
      }
    } else if (round == tables_) {
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

  // Only leaders need more of a table than whose it is.
  void read(size_t i, size_t round) {
    const std::byte* const part = slot(static_cast<int>(i), round);
    if (round == 0) {
      TableHead head;
      std::memcpy(&head, part, sizeof head);
      gpus_[i] = head.gpu;
      lengths_.resize(members());
      lengths_[i] = sizeof head + head.operands * sizeof(DeviceOperand) + head.copy_requests * sizeof(CopyRequest);
    }
    if (i < me() && gpus_[i] == gpus_[me()]) leads_ = false;
    if (!leads_) return;
    const Range range = chunk({0, lengths_[i]}, unit_, round);
    texts_[i].insert(texts_[i].end(), part, part + range.count());
  }

  size_t leader_of(size_t member) const {
    return static_cast<size_t>(std::find(gpus_.begin(), gpus_.end(), gpus_[member]) - gpus_.begin());
  }

  std::byte* address(size_t member, size_t operand) {
    if (member == me()) return job_.own[operand];
    DeviceOperand theirs;
    std::memcpy(&theirs, texts_[member].data() + sizeof(TableHead) + operand * sizeof theirs, sizeof theirs);
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
    if (!leads_) return;
    size_t first_operand = 0;
    for (const ReduceJob& reduction : job_.reductions) {
      plan(reduction, first_operand);
      first_operand += 2 * reduction.pieces.size();
    }
    for (size_t member = 0; member < members() && job_.reductions.empty(); ++member) {
      if (leader_of(member) != me()) continue;
      TableHead head;
      std::memcpy(&head, texts_[member].data(), sizeof head);
      const std::byte* const copy_requests =
          texts_[member].data() + sizeof head + head.operands * sizeof(DeviceOperand);
      for (size_t k = 0; k < head.copy_requests; ++k) {
        CopyRequest copy_request;
        std::memcpy(&copy_request, copy_requests + k * sizeof copy_request, sizeof copy_request);
        if (copy_request.nbytes == 0) continue;
        const std::byte* const src = address(copy_request.member, 0) + copy_request.src_offset;
        std::byte* const dst = address(member, 1) + copy_request.dst_offset;
        if (src != dst) moves_.push_back({src, dst, copy_request.nbytes});
      }
    }
  }

  // What of a reduction this rank folds, and for whom.
  void plan(const ReduceJob& reduction, size_t first_operand) {
    folds_.emplace_back();
    if (reduction.shape == ReduceShape::kReduceScatter) {
      for (size_t member = 0; member < members(); ++member) {
        if (leader_of(member) != me()) continue;
        const Range owned = reduction.owned[member];
        add_folds(reduction, first_operand, owned, {member}, owned.begin);
      }
      return;
    }
    std::vector<size_t> leaders;
    std::vector<size_t> takers;
    for (size_t member = 0; member < members(); ++member) {
      if (leader_of(member) == member) leaders.push_back(member);
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
  size_t unit_;
  size_t tables_;
  std::vector<DeviceId> gpus_;                 // by member
  std::vector<std::vector<std::byte>> texts_;  // tables by member; of the others only at a leader
  std::vector<size_t> lengths_;
  bool leads_ = true;
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
    const size_t tables = table_rounds(job_, team_.stage, team_.size());
    rounds_ = tables + kRoundsAfterTable;
    ipc_ = std::make_unique<Ipc>(team_, job_, table_unit(job_, team_.stage, team_.size()), tables);
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
  return table_rounds(job, stage, members) + kRoundsAfterTable + job.rounds_otherwise;
}

std::unique_ptr<Algorithm> ipc(Team team, IpcJob job) {
  return std::make_unique<IpcPath>(std::move(team), std::move(job));
}

}  // namespace rr
