#include "collective/staged.h"

#include <algorithm>
#include <cstring>

#include "data/stream.h"

namespace rr {
namespace {

constexpr size_t kFewCopies = 2;
constexpr size_t kLongCopy = 64 << 10;  // bytes, 1.3 us at 50 GB/s: about as long as it takes to issue a copy

void copy(std::byte* dst, const std::byte* src, size_t nbytes, bool streams) {
  streams ? stream(dst, src, nbytes) : void(std::memcpy(dst, src, nbytes));
}

}  // namespace

// Small rounds wander through the slots. Always in the same place they would write over lines that are still in the
// reader's L2 cache and must be taken back from there (7 ns a line; from the L3 behind it 2.7).
Staged::Staged(Team team, size_t rounds, size_t round_nbytes, bool folds)
    : team_(std::move(team)), rounds_(rounds), folds_(folds) {
  part_ = std::min(std::max<size_t>(round_up(round_nbytes, 4096), 4096), team_.stage.slot_nbytes);
  turns_ = team_.stage.slot_nbytes / part_;
}

bool Staged::peers_reached(std::atomic<uint64_t> Progress::*counter, size_t round) const {
  const uint64_t target = team_.first_round + round + 1;
  for (int i = 0; i < team_.size(); ++i) {
    if (i == team_.me || !is_source(i)) continue;
    const Progress& line = team_.stage.progress[team_.members[static_cast<size_t>(i)]];
    if ((line.*counter).load(std::memory_order_acquire) < target) return false;
  }
  return true;
}

// Round n overwrites the slot of round n - slot_count, so every rank of the group (also one that has joined since)
// must have finished with that one.
bool Staged::slot_is_free(size_t round) const {
  const uint64_t n = team_.first_round + round;
  if (n < team_.stage.slot_count) return true;
  const uint64_t needed = n - team_.stage.slot_count + 1;
  for (const int r : team_.sharing) {
    if (team_.stage.progress[r].take.load(std::memory_order_acquire) < needed) return false;
  }
  return true;
}

void Staged::begin(StageWriter::Phase phase, size_t round) {
  phase_ = phase;
  round_ = team_.first_round + round;
  compares_ = !on_device() && team_.writer->compares(round_);
}

void Staged::record_put() {
  Progress& mine = team_.stage.progress[team_.rank()];
  mine.put.store(team_.first_round + ++put_, std::memory_order_release);
  if (!folds_) mine.fold.store(team_.first_round + put_, std::memory_order_release);
}

void Staged::record_take() {
  team_.stage.progress[team_.rank()].take.store(team_.first_round + ++take_, std::memory_order_release);
}

// What continues the part before is one with it, within a tensor: the next tensor may be in another allocation, and no
// copy of the driver's goes from one into the next.
void Staged::add_part(std::byte* dst, const std::byte* src, size_t nbytes, size_t tensor) {
  if (nbytes == 0) return;
  const bool continues = !parts_.empty() && last_tensor_ == tensor && parts_.back().dst + parts_.back().count == dst &&
                         parts_.back().src + parts_.back().count == src;
  if (continues) {
    parts_.back().count += nbytes;
  } else {
    parts_.push_back({src, dst, nbytes});
  }
  last_tensor_ = tensor;
}

// The copies that a put or take asked for. Few long ones are the copy engines' work; many short ones go in one launch.
void Staged::issue(WorkStream work_stream, std::vector<Mark>& marks) {
  size_t nbytes = 0;
  for (const DevicePart& part : parts_) nbytes += part.count;
  if (parts_.size() <= kFewCopies || nbytes / parts_.size() >= kLongCopy) {
    for (const DevicePart& part : parts_) team_.device->copy(work_stream, part.dst, part.src, part.count);
  } else {
    team_.device->move(work_stream, parts_, DType::kUInt8, DType::kUInt8, 1.0);
  }
  parts_.clear();
  marks.push_back(team_.device->mark(work_stream));
}

bool Staged::land(std::vector<Mark>& marks) const {
  if (marks.empty() || !team_.device->passed(marks.front())) return false;
  marks.erase(marks.begin());
  return true;
}

// One action per call. Folding first feeds the peers soonest; staging ahead comes last.
Step Staged::step() {
  if (take_ == rounds_) return Step::kDone;
  if (land(puts_)) {
    record_put();
  } else if (land(takes_)) {
    record_take();
  } else if (folds_ && fold_ < put_ && peers_reached(&Progress::put, fold_)) {
    begin(StageWriter::Phase::kFold, fold_);
    fold(fold_);
    team_.stage.progress[team_.rank()].fold.store(team_.first_round + ++fold_, std::memory_order_release);
  } else if (taking_ < (folds_ ? fold_ : put_) && peers_reached(folds_ ? &Progress::fold : &Progress::put, taking_)) {
    begin(StageWriter::Phase::kTake, taking_);
    take(taking_++);
    if (on_device()) {
      issue(WorkStream::kToDevice, takes_);
      return Step::kProgress;
    }
    if (compares_) team_.writer->judge();
    record_take();
  } else if (putting_ < rounds_ && slot_is_free(putting_) && may_put(putting_)) {
    begin(StageWriter::Phase::kPut, putting_);
    put(putting_++);
    if (on_device()) {
      issue(WorkStream::kToHost, puts_);
      return Step::kProgress;
    }
    record_put();
  } else {
    return Step::kIdle;
  }
  team_.ring_others();
  return take_ == rounds_ ? Step::kDone : Step::kProgress;
}

bool Staged::needs(int rank) const {
  // The line of a rank on another host says nothing.
  const bool is_member = std::find(team_.members.begin(), team_.members.end(), rank) != team_.members.end();
  if (take_ == rounds_ || !is_member) return false;
  const Progress& line = team_.stage.progress[rank];
  return line.put.load(std::memory_order_acquire) < team_.first_round + rounds_ ||
         line.fold.load(std::memory_order_acquire) < team_.first_round + rounds_;
}

void Staged::copy_in(std::byte* slot, const std::byte* src, size_t nbytes, size_t tensor) {
  if (on_device()) {
    add_part(slot, src, nbytes, tensor);
  } else {
    in_slot(slot, nbytes,
            [&](size_t begin, size_t n, bool streams) { rr::write(slot + begin, src + begin, n, streams); });
  }
  team_.bytes_copied->fetch_add(nbytes, std::memory_order_relaxed);
}

void Staged::copy_out(std::byte* dst, const std::byte* slot, size_t nbytes, size_t tensor, bool streams) {
  if (on_device()) {
    add_part(dst, slot, nbytes, tensor);
  } else {
    in_slot(slot, nbytes, [&](size_t begin, size_t n, bool) { copy(dst + begin, slot + begin, n, streams); });
  }
  team_.bytes_copied->fetch_add(nbytes, std::memory_order_relaxed);
}

void Staged::copy_own(std::byte* dst, const std::byte* src, size_t nbytes, size_t tensor, bool streams) {
  on_device() ? add_part(dst, src, nbytes, tensor) : copy(dst, src, nbytes, streams);
  team_.bytes_copied->fetch_add(nbytes, std::memory_order_relaxed);
}

void skip_rounds(const Stage& stage, int rank, size_t first_round, size_t rounds) {
  Progress& line = stage.progress[rank];
  line.put.store(first_round + rounds, std::memory_order_release);
  line.fold.store(first_round + rounds, std::memory_order_release);
  line.take.store(first_round + rounds, std::memory_order_release);
}

}  // namespace rr
