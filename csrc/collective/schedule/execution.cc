#include "collective/schedule/execution.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "data/stream.h"

namespace rr {
namespace {

using Id = Schedule::Id;
using Kind = Schedule::Kind;
using Item = Schedule::Item;

constexpr size_t kBlockNbytes = 256 << 10;  // of a copy or a reduction, before this rank looks at its links again
// Of short messages, in one direction of a link, before the next one's turn.
constexpr size_t kAtOnceNbytes = 64 << 10;

bool is_message(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive || kind == Kind::kFold; }

class Execution final : public Algorithm {
 public:
  Execution(Team team, Schedule schedule) : team_(std::move(team)), schedule_(std::move(schedule)) {
    count_waits();
    for (Id id = 0; id < items().size(); ++id) {
      const Item& item = items()[id];
      if (item.kind == Kind::kOnHost) {
        on_host_.push_back(id);
      } else if (is_message(item.kind)) {
        direction(item.kind == Kind::kSend ? out_ : in_, item.rank).messages.push_back(id);
      } else if (waits_[id] == 0) {
        ready_.push_back(id);
      }
    }
    left_ = items().size();
  }

  Step step() override {
    bool moved = false;
    for (Direction& one : out_) moved |= pass(one);
    for (auto one = in_.rbegin(); one != in_.rend(); ++one) moved |= pass(*one);
    moved |= compute();
    moved |= step_on_host();
    if (left_ == 0) return Step::kDone;
    return moved ? Step::kProgress : Step::kIdle;
  }

  bool needs(int rank) const override {
    const auto is_open = [rank](const Direction& one) { return one.rank == rank && one.next != one.messages.size(); };
    if (std::any_of(out_.begin(), out_.end(), is_open) || std::any_of(in_.begin(), in_.end(), is_open)) return true;
    return std::any_of(on_host_.begin() + static_cast<ptrdiff_t>(next_on_host_), on_host_.end(),
                       [&](Id id) { return algorithm(id)->needs(rank); });
  }

 private:
  // One direction of a link.
  struct Direction {
    int rank;
    Link* link;
    std::vector<Id> messages;
    size_t next = 0;    // of messages
    size_t offset = 0;  // bytes of it that are through
  };

  const std::vector<Item>& items() const { return schedule_.items(); }
  const std::unique_ptr<Algorithm>& algorithm(Id id) const { return schedule_.algorithms()[items()[id].operands]; }

  // By item, what waits for it: later_[first_later_[id]] to later_[first_later_[id + 1]].
  void count_waits() {
    const size_t count = items().size();
    waits_.assign(count, 0);
    first_later_.assign(count + 1, 0);
    for (const auto& [earlier, later] : schedule_.edges()) {
      ++waits_[later];
      ++first_later_[earlier + 1];
    }
    for (size_t i = 0; i < count; ++i) first_later_[i + 1] += first_later_[i];
    later_.resize(schedule_.edges().size());
    std::vector<size_t> at(first_later_.begin(), first_later_.end() - 1);
    for (const auto& [earlier, later] : schedule_.edges()) later_[at[earlier]++] = later;
  }

  Direction& direction(std::vector<Direction>& all, int rank) {
    for (Direction& known : all) {
      if (known.rank == rank) return known;
    }
    all.push_back({rank, team_.links[static_cast<size_t>(rank)], {}});
    return all.back();
  }

  void finish(Id id) {
    --left_;
    for (size_t i = first_later_[id]; i < first_later_[id + 1]; ++i) {
      const Id later = later_[i];
      if (--waits_[later] != 0) continue;
      const Kind kind = items()[later].kind;
      releases_message_ |= is_message(kind);
      if (!is_message(kind) && kind != Kind::kOnHost) ready_.push_back(later);
    }
  }

  // Up to a block's worth of messages, so that all links get their turn. True when something moved.
  bool pass(Direction& one) {
    size_t passed = 0;
    while (one.next != one.messages.size() && passed < kAtOnceNbytes) {
      const Id id = one.messages[one.next];
      if (waits_[id] != 0) break;
      const Item& item = items()[id];
      const size_t moved = move(*one.link, item, one.offset, item.count - one.offset);
      one.offset += moved;
      passed += moved;
      if (one.offset != item.count) break;
      ++one.next;
      one.offset = 0;
      finish(id);
    }
    return passed != 0;
  }

  size_t move(Link& link, const Item& item, size_t offset, size_t nbytes) {
    if (item.kind == Kind::kSend) return link.push(item.src + offset, nbytes);
    if (item.kind == Kind::kReceive) return link.pull(item.dst + offset, nbytes);
    return link.fold(item.dst + offset, nbytes, schedule_.reductions()[item.reduction], *team_.kernels);
  }

  // Until there is a message to pass, or a block's worth is done.
  bool compute() {
    releases_message_ = false;
    bool moved = false;
    size_t budget = kBlockNbytes;
    while (!ready_.empty() && budget != 0 && !releases_message_) {
      moved = true;
      const Id id = ready_.front();
      if (!compute(items()[id], budget)) break;
      ready_.pop_front();
      computed_ = 0;
      finish(id);
    }
    return moved;
  }

  // False: there is more of it to do. budget: bytes, less what was done.
  bool compute(const Item& item, size_t& budget) {
    if (item.kind == Kind::kCopy || item.kind == Kind::kReduce) return compute_block(item, budget);
    if (item.kind == Kind::kEncode) team_.kernels->encode(item.codec, item.src, item.dst, item.count);
    if (item.kind == Kind::kDecode) team_.kernels->decode(item.codec, item.src, item.dst, item.count);
    if (item.kind == Kind::kRoundTrip) codec_round_trip(*team_.kernels, item.codec, item.dst, item.count);
    budget -= std::min(budget, item.count * sizeof(float));
    return true;
  }

  bool compute_block(const Item& item, size_t& budget) {
    const bool is_copy = item.kind == Kind::kCopy;
    const size_t item_nbytes = is_copy ? 1 : itemsize(schedule_.reductions()[item.reduction].dtype);
    const size_t offset = computed_ * item_nbytes;
    const size_t count = std::min(item.count - computed_, std::max<size_t>(1, budget / item_nbytes));
    is_copy ? copy(item, offset, count) : reduce(item, offset, count);
    computed_ += count;
    budget -= std::min(budget, count * item_nbytes);
    return computed_ == item.count;
  }

  void copy(const Item& item, size_t offset, size_t nbytes) const {
    if (item.count >= kStreamedNbytes) {
      stream(item.dst + offset, item.src + offset, nbytes);
    } else {
      std::memcpy(item.dst + offset, item.src + offset, nbytes);
    }
  }

  void reduce(const Item& item, size_t offset, size_t count) {
    srcs_.clear();
    const auto first = schedule_.operands().begin() + static_cast<ptrdiff_t>(item.operands);
    for (auto src = first; src != first + static_cast<ptrdiff_t>(item.operand_count); ++src) {
      srcs_.push_back(*src + offset);
    }
    void* dst = item.dst + offset;
    team_.kernels->reduce(schedule_.reductions()[item.reduction], srcs_.data(), srcs_.size(), &dst, 1, count);
  }

  bool step_on_host() {
    if (next_on_host_ == on_host_.size()) return false;
    const Id id = on_host_[next_on_host_];
    if (waits_[id] != 0) return false;
    std::unique_ptr<Algorithm>& here = schedule_.algorithms()[items()[id].operands];
    const Step step = here->step();
    if (step == Step::kDone) {
      here.reset();
      ++next_on_host_;
      finish(id);
    }
    return step != Step::kIdle;
  }

  const Team team_;
  Schedule schedule_;
  std::vector<uint32_t> waits_;  // by item: how many that it waits for are not done
  std::vector<size_t> first_later_;
  std::vector<Id> later_;
  std::vector<Direction> out_;
  std::vector<Direction> in_;
  std::deque<Id> ready_;
  size_t computed_ = 0;  // elements of the first that is ready
  std::vector<Id> on_host_;
  size_t next_on_host_ = 0;
  std::vector<const void*> srcs_;
  size_t left_ = 0;  // items
  bool releases_message_ = false;
};

}  // namespace

std::unique_ptr<Algorithm> execute(const Team& team, Schedule schedule) {
  return std::make_unique<Execution>(team, std::move(schedule));
}

}  // namespace rr
