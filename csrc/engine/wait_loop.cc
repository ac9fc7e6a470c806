#include "engine/wait_loop.h"

#include <sys/prctl.h>

#include <algorithm>
#include <optional>

#include "engine/shown_wait.h"

namespace rr {
namespace {

constexpr int64_t kSleepNs = 100000000;  // a blocked call looks after its peers this often
constexpr int64_t kPollNs = 50000;       // the shortest nap of a thread that waits and looks at links
// Where links have no reader, each nap of the engine lasts as long as the time since the engine last moved something,
// at least this, at most kUnrungNs. A look by Open MPI takes 20 us from a rank that computes (4 hosts of 1 rank on 2
// cores, steps of 1 ms of computing and 8 B: naps of a quarter of that time, at least 50 us, gave 2.72 ms a step).
constexpr int64_t kEngineNapNs = 3 * kPollNs;
// The engine naps so long where only calls of its own rank need what comes (the same steps take 2.44 ms; with the naps
// above 2.54).
constexpr int64_t kCallersNs = 2'000'000;
// Links that have a reader ring. Then somebody looks this often, at what ranks of one host tell their leader without a
// bell, such as how far they have come (one rank alone after the others have joined, 2000 operations: 0.4 s, by 100 ms
// 15 s). Also the longest nap between two looks at links without a reader, where others may need what comes.
constexpr int64_t kUnrungNs = 500000;
// A thread that waits on such links looks at them as at others as long as something was done within this time: one that
// is woken by the reader's thread, which the kernel has woken, comes later (8 B, 4 hosts of one rank
// on 2 cores: 234 us instead of 277).
constexpr int64_t kQuietNs = 10000000;
// The engine leaves the links to a thread that has looked at them so lately, or is in the middle of a step: two pollers
// cost twice (2 hosts of 1 rank, no shaping, 1 / 4 / 16 MiB: 0.8 / 0.9 / 0.75 of the time).
constexpr int64_t kDrivenNs = 4 * kPollNs;
// A thread that a LinkWait counts naps 0.5 ms at most. If it has not looked for so long, it is held up, and the engine
// looks.
constexpr int64_t kLongestLookNs = 2 * kUnrungNs;
// While a LinkWait counts a thread, the engine sleeps this long. The last such thread rings when it goes: with a reader
// always, else when it leaves work behind (4 MiB, 4 hosts, 1 Gbit/s: 310 sleeps a call, by 0.2 ms 460). Otherwise the
// engine sleeps as long as threads have looked without a pause, from kDrivenNs to this. What arrives after the last of
// many short waits, and for which nobody here has called anything, is seen so much later, once.
constexpr int64_t kLeftMostNs = 2'000'000;
// A wait on links that has lasted so long is for many bytes, not for one message: it looks once every two naps' time,
// also just after something has come, and leaves the core to whoever works (Open MPI, 16 MiB, 4 hosts on 2 cores: 219
// to 212 ms).
constexpr int64_t kBulkNs = 1000000;
constexpr int64_t kIdleNs = 250000000;  // the engine likewise: 4 wake-ups a second, about 0.01 % of a core
// The same of work streams of a GPU: a mark is waited for by looking at it. A short nap needs a small slack of the
// timer, whose default of 50 us comes on top.
constexpr int64_t kDeviceNapNs = 10000;
// Ranks that share cores give way this often before they sleep. Each yield lets the others of the core run once, but
// recent kernels also take a time slice (2.8 ms) from who yields, so that one that yields on and on is put behind all
// others for milliseconds (8 B, 8 ranks on 2 cores, p50/p99 us: 50 us of yields 27/2800, 8 yields 26/140, none 89/380).
constexpr int kYields = 8;
// Who waits for other hosts gives way between any two looks: ranks of other hosts may share the core (in a test lab),
// other jobs, or a container that has less of it than it seems. One that pauses instead keeps the core from the very
// rank that it waits for (4 hosts of 1 rank on 2 cores, us before and after: 4 KiB 290 / 190, named 770 / 470, 16 KiB
// 800 / 510, 64 KiB 930 / 850; of 2 ranks, 8 B 1100 / 700). A yield that nobody takes costs 0.3 us, and a look at the
// links 1. To sleep after two yields that were taken costs more than it leaves to the others (named 8 B 118 to 158 us,
// 4 KiB 300 to 410). But one that took so long was taken by somebody who computes, for a slice of time of the kernel's
// (2.8 ms): such a yield is worse than a sleep, from which a thread is woken before who computes. So waits do not yield
// for a while; over links without a reader they sleep a quarter of the time in which nothing has come: each look takes
// the core from who computes.
constexpr int64_t kSliceNs = 500000;
constexpr int64_t kUnyieldingNs = 100000000;

// Lets this thread's naps end when they should, for as long as it lives.
class ShortNaps {
 public:
  explicit ShortNaps(bool wanted) {
    if (!wanted) return;
    slack_ns_ = ::prctl(PR_GET_TIMERSLACK);
    if (slack_ns_ > 0) ::prctl(PR_SET_TIMERSLACK, 1000UL);
  }
  ~ShortNaps() {
    if (slack_ns_ > 0) ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns_));
  }
  ShortNaps(const ShortNaps&) = delete;
  ShortNaps& operator=(const ShortNaps&) = delete;

 private:
  int slack_ns_ = 0;
};
// Has the network's reader ring for what arrives while this thread sleeps.
class Watch {
 public:
  explicit Watch(NetworkReader* reader) : reader_(reader) {
    if (reader_ != nullptr) reader_->begin_watch();
  }
  ~Watch() {
    if (reader_ != nullptr) reader_->end_watch();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  NetworkReader* const reader_;
};
}  // namespace

// A thread waits and looks at the links: the engine need not look before this has gone.
class WaitLoop::LinkWait {
 public:
  explicit LinkWait(WaitLoop& loop) : loop_(loop) { loop_.link_waits_.fetch_add(1); }
  ~LinkWait() {
    const bool is_last = loop_.link_waits_.fetch_sub(1) == 1;
    if (is_last && loop_.engine_leaves_links_.load() && loop_.must_engine_look()) loop_.wake_engine();
  }
  LinkWait(const LinkWait&) = delete;
  LinkWait& operator=(const LinkWait&) = delete;

 private:
  WaitLoop& loop_;
};

bool WaitLoop::wait_until(const std::function<bool()>& done, const std::function<bool()>& has_work, Deadline deadline,
                          Interrupt interrupt, bool crowded, const std::function<void()>& tick,
                          const IsUnrung& is_unrung) {
  Bell& bell = *wait_bell_;
  const ShownWait shown(*wait_line_, WaitLine::kOther);
  const int64_t spin_ns = static_cast<int64_t>(from_.spin_us * 1000);
  int64_t polling_since = 0;
  int polls = 0;
  int executed = 0;
  int64_t looked_ns = 0;
  std::optional<LinkWait> link_wait;
  const auto look_around = [&] {
    looked_ns = now_ns();
    running_.look(looked_ns);
    link_wait.reset();  // a handler of signals may take long
    if (interrupt != nullptr) interrupt();
    from_.housekeep();
    tick();
  };
  const bool has_links = !from_.network.host_of.empty();
  const int64_t began_ns = has_links ? now_ns() : 0;
  int64_t came_ns = began_ns;  // when something was last done
  bool may_yield = began_ns >= unyielding_until_ns_.load(std::memory_order_relaxed);
  const auto is_bulk = [&] { return has_links && now_ns() - began_ns > kBulkNs; };
  const int64_t spares_engine_after_ns = from_.network.reader == nullptr ? kDrivenNs : kBulkNs;
  bool has_napped = false;  // and nothing has come since: one look at the links is as good as 50 us of them
  const auto polled_enough = [&] {
    ++polls;
    if (has_napped || !may_yield) return true;
    if (crowded) return polls > kYields || spin_ns == 0;
    // The clock costs as much as a poll, so it is read every 16th time.
    if (polls % 16 != 0 && spin_ns != 0) return false;
    const int64_t now = now_ns();
    if (polling_since == 0) polling_since = now;
    return now - polling_since >= spin_ns;
  };
  for (;;) {
    if (done()) return true;
    if (has_work() && from_.groups.progress(false)) {
      polling_since = polls = 0;
      if (has_links) came_ns = now_ns();
      has_napped = is_bulk();
      if (++executed % 16 != 0) continue;  // a clock costs as much as a small step
      if (deadline.passed()) return done();
      if (looked_ns == 0) looked_ns = now_ns();
      if (now_ns() - looked_ns >= kSleepNs) look_around();
      continue;
    }
    if (!polled_enough()) {
      const int64_t before = has_links ? now_ns() : 0;
      relax(crowded || has_links);
      const int64_t lost_ns = has_links ? now_ns() - before : 0;
      if (lost_ns > kSliceNs) {
        may_yield = false;
        unyielding_until_ns_.store(before + lost_ns + kUnyieldingNs, std::memory_order_relaxed);
      }
      continue;
    }
    if (deadline.passed()) return false;
    const SleepScope scope(bell);
    const uint32_t seen = bell.seq.load(std::memory_order_seq_cst);
    if (done()) return true;
    if (has_work() && from_.groups.progress(false)) {
      if (has_links) came_ns = now_ns();
      continue;
    }
    add(stats_->sleeps, 1);
    const bool polls_device = from_.gpu.is_busy();
    // Without work of its own a rank waits for what its host's leader hears, which rings: nothing comes on its links
    // (a barrier of 4 hosts of 64 ranks, all threads of one process on 2 cores: 33 to 1.3 ms of CPU time a rank).
    const bool uses_links = has_links && has_work();
    const bool polls_links = uses_links && (from_.network.reader == nullptr || now_ns() - came_ns < kQuietNs);
    const Watch watch(uses_links && !polls_links ? from_.network.reader.get() : nullptr);
    const bool spares_engine = uses_links && now_ns() - began_ns > spares_engine_after_ns;
    if (!spares_engine) link_wait.reset();
    if (spares_engine && !link_wait) link_wait.emplace(*this);
    const bool may_change_unrung = has_links && is_unrung && is_unrung();
    const int64_t shortest_ns = is_bulk() ? 2 * kPollNs : kPollNs;
    const int64_t nap_ns = polls_device   ? kDeviceNapNs
                           : !uses_links  ? (may_change_unrung ? kUnrungNs : kSleepNs)
                           : !polls_links ? kUnrungNs
                           : may_yield || from_.network.reader != nullptr
                               ? shortest_ns
                               : std::clamp((now_ns() - came_ns) / 4, shortest_ns, kUnrungNs);
    const ShortNaps exact(polls_device);
    const Woken woken = sleep_on(bell, seen, deadline.left_ns(nap_ns));
    has_napped = (polls_links || polls_device) && woken != Woken::kRung;
    polling_since = 0;  // polls stays: who has slept once and was woken too early gives way no more, it sleeps again
    // A rank whose bell other operations keep ringing looks around as often as one that sleeps in peace.
    if (looked_ns == 0) looked_ns = now_ns();
    const bool in_peace = woken != Woken::kRung && nap_ns == kSleepNs;
    if (in_peace || now_ns() - looked_ns >= kSleepNs) look_around();
  }
}

void WaitLoop::run_engine() {
  Bell& idle_bell = *engine_bell_;
  Bell& busy_bell = *wait_bell_;
  int64_t looked_ns = now_ns();  // by the clock, because the bells of a busy rank let no sleep run out
  int64_t driven_since_ns = 0;   // by threads that wait; 0: by none
  int64_t moved_ns = 0;          // when something was done, or rung for
  while (!stop_.load(std::memory_order_acquire)) {
    if (const int64_t now = now_ns(); now - looked_ns >= kSleepNs) {
      looked_ns = now;
      running_.look(now);
      from_.housekeep();
    }
    const SleepScope idle(idle_bell);
    const uint32_t seen_idle = idle_bell.seq.load(std::memory_order_seq_cst);
    bool busy = false;
    int64_t sleep_ns = kIdleNs;
    {
      const SleepScope scope(busy_bell);
      const uint32_t seen_busy = busy_bell.seq.load(std::memory_order_seq_cst);
      const int64_t now = now_ns();
      if (now - from_.groups.driven_ns() < (link_waits_.load() != 0 ? kLongestLookNs : kDrivenNs)) {
        if (driven_since_ns == 0) driven_since_ns = now;
        // One of the two sees the other: the thread that goes, or the engine that falls asleep.
        engine_leaves_links_.store(true);
        const int64_t unwaited_ns = std::clamp(now - driven_since_ns, kDrivenNs, kLeftMostNs);
        const Woken woken = sleep_on(idle_bell, seen_idle, link_waits_.load() != 0 ? kLeftMostNs : unwaited_ns);
        engine_leaves_links_.store(false);
        if (woken == Woken::kRung) {  // there is something to do
          moved_ns = now_ns();
          driven_since_ns = 0;
        }
        continue;
      }
      driven_since_ns = 0;
      if (from_.groups.progress(true, &busy)) {
        moved_ns = now;
        continue;
      }
      if (from_.groups.driven_ns() >= now) continue;  // a thread that waits is in the middle of a step
      const int64_t linger = from_.groups.linger_until_ns();
      if (linger != INT64_MAX) {
        sleep_ns = std::max<int64_t>(1000, std::min(kIdleNs, linger - now_ns()));
        busy = false;
      }
      if (busy && !stop_.load(std::memory_order_acquire)) {
        const bool polls_device = from_.gpu.is_busy();
        const ShortNaps exact(polls_device);
        const Watch watch(from_.network.reader.get());
        const LinkNeed need = from_.groups.link_need();
        const int64_t nap_ns = polls_device                      ? kDeviceNapNs
                               : need == LinkNeed::kNobody       ? kSleepNs
                               : from_.network.reader != nullptr ? kUnrungNs
                               : need == LinkNeed::kCallers      ? kCallersNs
                                                                 : std::clamp(now - moved_ns, kEngineNapNs, kUnrungNs);
        if (sleep_on(busy_bell, seen_busy, nap_ns) == Woken::kRung) moved_ns = now_ns();
        continue;
      }
    }
    if (stop_.load(std::memory_order_acquire)) return;
    const Watch watch(from_.network.reader.get());
    if (sleep_on(idle_bell, seen_idle, sleep_ns) == Woken::kRung) moved_ns = now_ns();
  }
}

// Over links that have a reader what came meanwhile has rung nobody.
bool WaitLoop::must_engine_look() const {
  return from_.network.reader != nullptr || from_.gpu.is_busy() || from_.groups.must_go_on();
}

void WaitLoop::stop() {
  stop_.store(true);
  wake_all(*engine_bell_);
  wake_all(*wait_bell_);
}

}  // namespace rr
