// A doorbell in shared memory: one rank's threads sleep on it, every other rank may ring it. Ringing costs one load
// when nobody sleeps and one futex wake otherwise.
//
// No wake-up is lost: a sleeper counts itself in, then looks at its condition once more, then sleeps unless `seq`
// moved; a ringer publishes, then (behind a full fence) looks at the count. One of them sees the other.
#pragma once

#include <atomic>
#include <cstdint>

namespace rr {

struct alignas(64) Bell {
  std::atomic<uint32_t> seq;
  std::atomic<uint32_t> sleepers;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

enum class Woken { kRung, kTimeout, kSignal };

// Sleeps while bell.seq == seen, at most timeout_ns. The caller has counted itself in (SleepScope).
Woken sleep_on(Bell& bell, uint32_t seen, int64_t timeout_ns);
void wake_all(Bell& bell);

// Behind a full fence after the caller's publication: one fence does for many bells.
inline void wake_sleepers(Bell& bell) {
  if (bell.sleepers.load(std::memory_order_relaxed) != 0) wake_all(bell);
}
inline void ring(Bell& bell) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_sleepers(bell);
}

class SleepScope {
 public:
  // What the sleeper looks at next must be read after its count is written. An addition is no fence on ARMv8.0, where
  // it ends with a store that later loads may overtake.
  explicit SleepScope(Bell& bell) : bell_(bell) {
    bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  ~SleepScope() { bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  SleepScope(const SleepScope&) = delete;
  SleepScope& operator=(const SleepScope&) = delete;

 private:
  Bell& bell_;
};

// One turn of a polling loop: a pause when every rank has a core, else a turn for somebody else.
void relax(bool ranks_outnumber_cores);

}  // namespace rr
