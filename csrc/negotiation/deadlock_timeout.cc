#include "negotiation/deadlock_timeout.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "negotiation/segment/failure.h"

namespace rr {
namespace {
// A waiting thread looks every 100 ms. Where it was stopped between two looks, with or without the other ranks, nobody
// could call anything: no more than this counts.
constexpr int64_t kLongestLookNs = 1000000000;  // 1 s
}  // namespace

DeadlockTimeout::DeadlockTimeout(const ControlSegment& world, int rank, double limit_s, int64_t (*clock)())
    : world_(world),
      rank_(rank),
      limit_ns_(static_cast<int64_t>(limit_s * 1e9)),
      clock_(clock),
      calls_(&world.wait(rank).calls) {}

bool DeadlockTimeout::look(Waiter& waiter, std::string waits_for) {
  if (limit_ns_ == 0) return false;
  // Who has found it may have died before it said why; then its death is what ends the world.
  if (has_failed(world_)) return world_.header().deadlock_timed_out.load() != 0;
  const int64_t now = clock_();
  const std::lock_guard lock(mutex_);
  if (waiters_.empty()) {  // nobody has looked for a while
    quiet_ns_ = 0;
    last_look_ns_ = now;
  }
  if (waiter.since_ns_ == 0) {
    waiter.since_ns_ = now;
    waiters_.push_back(&waiter);
  }
  waiter.waits_for_ = std::move(waits_for);
  const bool is_under_way =
      std::any_of(waiters_.begin(), waiters_.end(), [](const Waiter* one) { return one->waits_for_.empty(); });
  const bool is_said = publish(is_under_way ? nullptr : waiters_.front(), now);
  const uint64_t calls = calls_of_all();
  const bool is_quiet = is_said && calls == seen_calls_ && all_wait(now);
  quiet_ns_ = is_quiet ? quiet_ns_ + std::min(now - last_look_ns_, kLongestLookNs) : 0;
  seen_calls_ = calls;
  last_look_ns_ = now;
  return quiet_ns_ >= limit_ns_ && conclude(now);
}

void DeadlockTimeout::remove(const Waiter& waiter) {
  if (waiter.since_ns_ == 0) return;
  const std::lock_guard lock(mutex_);
  waiters_.erase(std::remove(waiters_.begin(), waiters_.end(), &waiter), waiters_.end());
  if (waiters_.empty()) line(rank_).looked_ns.store(0, std::memory_order_release);
}

// mutex_ held. longest: of this rank's threads that wait in vain, the one that does so longest; null: they do not.
// False where nothing could be said: another thread has the lock, and might have it for ever.
bool DeadlockTimeout::publish(const Waiter* longest, int64_t now) {
  RankWait& mine = line(rank_);
  bool is_said = longest != nullptr;
  if (is_said && (mine.since_ns != longest->since_ns_ || published_ != longest->waits_for_)) {
    is_said = world_.header().lock.try_acquire();
    if (is_said) {
      const SharedLockGuard guard(world_.header().lock, std::adopt_lock);
      write_text(mine.text, longest->waits_for_);
      mine.since_ns = longest->since_ns_;
      published_ = longest->waits_for_;
    }
  }
  mine.looked_ns.store(is_said ? now : 0, std::memory_order_release);
  return is_said;
}

// A thread that is stopped cannot say that what it waits for has been called meanwhile: its word is good for half of
// the time that the verdict takes. A rank that has left will call nothing more; one that has joined waits for nothing.
bool DeadlockTimeout::all_wait(int64_t now) const {
  if (world_.header().joined_count.load() != 0) return false;
  for (int r = 0; r < world_.size(); ++r) {
    if (has_left(world_.line(r))) continue;
    if (now - line(r).looked_ns.load(std::memory_order_acquire) > limit_ns_ / 2) return false;
  }
  return true;
}

uint64_t DeadlockTimeout::calls_of_all() const {
  uint64_t calls = 0;
  for (int r = 0; r < world_.size(); ++r) calls += line(r).calls.load(std::memory_order_relaxed);
  return calls;
}

bool DeadlockTimeout::conclude(int64_t now) {
  if (!world_.header().lock.try_acquire()) return false;  // at the next look
  const auto locked_text = [&] {
    const SharedLockGuard guard(world_.header().lock, std::adopt_lock);
    return describe(now);
  };
  const std::string text = locked_text();
  world_.header().deadlock_timed_out.store(1);  // before the failure, which makes all ranks look at it
  record_failure(world_, FatalKind::kMismatch, text);
  return true;
}

// Under the lock.
std::string DeadlockTimeout::describe(int64_t now) const {
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g", static_cast<double>(limit_ns_) * 1e-9);
  std::string text = std::string("every rank waits and none has called anything for ") + limit +
                     " s (RINGREDUCE_VERDICT). Call the same operations with the same names on all ranks. Where a rank "
                     "is at other work for so long while a thread of it waits, set RINGREDUCE_VERDICT to more seconds, "
                     "or to 0 for never.";
  for (int r = 0; r < world_.size(); ++r) {
    if (has_left(world_.line(r))) continue;
    const int64_t waited_s = (now - line(r).since_ns) / 1000000000;
    text += " Rank " + std::to_string(r) + " waits " + line(r).text + ", for " + std::to_string(waited_s) + " s.";
  }
  return text;
}

}  // namespace rr
