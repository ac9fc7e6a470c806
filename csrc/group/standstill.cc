#include "group/standstill.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "group/failure.h"

namespace rr {

Standstill::Standstill(const Board& world, int rank, double limit_s, std::function<void()> give_up)
    : board_(world),
      rank_(rank),
      limit_ns_(static_cast<int64_t>(limit_s * 1e9)),
      give_up_(std::move(give_up)),
      calls_(&world.wait(rank).calls) {}

bool Standstill::look(Waiter& waiter, std::string waits_for) {
  if (limit_ns_ == 0) return false;
  if (board_.header().standstill.load(std::memory_order_acquire) != 0) return true;
  const int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  if (waiter.since_ns_ == 0) {
    waiter.since_ns_ = now;
    waiters_.push_back(&waiter);
  }
  waiter.waits_for_ = std::move(waits_for);
  const bool is_under_way =
      std::any_of(waiters_.begin(), waiters_.end(), [](const Waiter* one) { return one->waits_for_.empty(); });
  publish(is_under_way ? nullptr : waiters_.front(), now);
  const uint64_t calls = calls_of_all();
  if (calls != seen_calls_ || !all_wait(now)) {
    seen_calls_ = calls;
    quiet_since_ns_ = now;
  }
  if (now - quiet_since_ns_ < limit_ns_) return false;
  if (record_failure(board_, FatalKind::kMismatch, describe(now))) board_.header().standstill.store(1);
  return board_.header().standstill.load() != 0;
}

void Standstill::remove(const Waiter& waiter) {
  if (waiter.since_ns_ == 0) return;
  const std::lock_guard lock(mutex_);
  waiters_.erase(std::remove(waiters_.begin(), waiters_.end(), &waiter), waiters_.end());
  if (waiters_.empty()) line(rank_).looked_ns.store(0, std::memory_order_release);
}

// mutex_ held. longest: of this rank's threads that wait in vain, the one that does so longest; null: they do not.
void Standstill::publish(const Waiter* longest, int64_t now) {
  RankWait& mine = line(rank_);
  if (longest != nullptr && (mine.since_ns != longest->since_ns_ || published_ != longest->waits_for_)) {
    const SharedLockGuard guard(board_.header().lock, give_up_);
    published_ = longest->waits_for_;
    const size_t length = std::min(published_.size(), sizeof mine.text - 1);
    std::memcpy(mine.text, published_.data(), length);
    mine.text[length] = '\0';
    mine.since_ns = longest->since_ns_;
  }
  mine.looked_ns.store(longest != nullptr ? now : 0, std::memory_order_release);
}

// A thread that is stopped cannot say that what it waits for has been called meanwhile: its word is good for half of
// the time that the verdict takes.
bool Standstill::all_wait(int64_t now) const {
  for (int r = 0; r < board_.size(); ++r) {
    if (now - line(r).looked_ns.load(std::memory_order_acquire) > limit_ns_ / 2) return false;
  }
  return true;
}

uint64_t Standstill::calls_of_all() const {
  uint64_t calls = 0;
  for (int r = 0; r < board_.size(); ++r) calls += line(r).calls.load(std::memory_order_relaxed);
  return calls;
}

std::string Standstill::describe(int64_t now) const {
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g", static_cast<double>(limit_ns_) * 1e-9);
  const SharedLockGuard guard(board_.header().lock, give_up_);
  std::string text =
      std::string("every rank waits and none has called anything for ") + limit + " s (RINGREDUCE_VERDICT): ";
  for (int r = 0; r < board_.size(); ++r) {
    const int64_t waited_s = (now - line(r).since_ns) / 1000000000;
    text += (r != 0 ? "; rank " : "rank ") + std::to_string(r) + " waits " + line(r).text + ", for " +
            std::to_string(waited_s) + " s";
  }
  return text +
         ". Call the same operations with the same names on all ranks. Where a rank is at other work for so long "
         "while a thread of it waits, set RINGREDUCE_VERDICT to more seconds, or to 0 for never.";
}

}  // namespace rr
