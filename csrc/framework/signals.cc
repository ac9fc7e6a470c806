#include "framework/signals.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <mutex>

#include "base/clock.h"
#include "base/never_destroyed.h"
#include "os/thread.h"

namespace rr {
namespace {

constexpr int64_t kSignalPatienceNs = 10'000'000'000;
// What comes again so soon is the same signal: a launcher and the cluster's manager may both send it to all ranks.
constexpr int64_t kSameSignalNs = 200'000'000;

struct Watched {
  int number;
  const char* name;
  struct sigaction before = {};  // the handler that ours calls
  bool is_armed = false;         // there is one
  std::atomic<uint32_t> count{0};
  std::atomic<int64_t> last_ns{0};
  Watched(int of, const char* text) : number(of), name(text) {}
};

std::array<Watched, 2> watched = {{{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}}};
std::atomic<uint32_t> ended{0};  // waits that a signal has ended
SignalHandlers python = {nullptr, nullptr, nullptr};
thread_local SignalWatch* current = nullptr;

extern "C" void on_signal(int number, siginfo_t* info, void* context) {
  for (Watched& one : watched) {
    if (one.number != number) continue;
    one.last_ns.store(now_ns(), std::memory_order_relaxed);
    one.count.fetch_add(1, std::memory_order_release);
    if ((one.before.sa_flags & SA_SIGINFO) != 0) {
      one.before.sa_sigaction(number, info, context);
    } else {
      one.before.sa_handler(number);
    }
  }
}

bool have_same_handler(const struct sigaction& one, const struct sigaction& other) {
  const bool takes_info = (one.sa_flags & SA_SIGINFO) != 0;
  if (takes_info != ((other.sa_flags & SA_SIGINFO) != 0)) return false;
  return takes_info ? one.sa_sigaction == other.sa_sigaction : one.sa_handler == other.sa_handler;
}

// A handler that stands where ours was: Python has set its own again, which is the same for all signals; or C code has
// put one in front of ours, which may call ours (faulthandler.register(chain=True) does). In front of the latter, ours
// would call it, and it ours, until the stack ends.
bool is_pythons(const struct sigaction& handler) {
  if ((handler.sa_flags & SA_NODEFER) != 0) return false;  // one that raises the signal anew; Python's has no such flag
  for (const Watched& one : watched) {
    if (one.is_armed && have_same_handler(one.before, handler)) return true;
  }
  return false;
}

// In front of a handler that is there: what a signal without one does, or that it is ignored, stays as it is.
void arm() {
  static auto& mutex = never_destroyed<std::mutex>();
  const std::lock_guard lock(mutex);
  for (Watched& one : watched) {
    struct sigaction now = {};
    if (::sigaction(one.number, nullptr, &now) != 0) continue;
    const bool takes_info = (now.sa_flags & SA_SIGINFO) != 0;
    if (takes_info ? now.sa_sigaction == on_signal : now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) continue;
    if (one.is_armed && !is_pythons(now)) continue;
    one.before = now;
    one.is_armed = true;
    now.sa_sigaction = on_signal;
    now.sa_flags |= SA_SIGINFO;
    ::sigaction(one.number, &now, nullptr);
  }
}

[[noreturn]] void end(const char* name) {
  ended.fetch_add(1);
  throw Interrupted(name);
}

}  // namespace

void watch_signals(const SignalHandlers& handlers) {
  python = handlers;
  arm();
}

SignalWatch::SignalWatch() : ended_(ended.load()), outer_(current) {
  static_assert(kCount == watched.size());
  for (int i = 0; i < kCount; ++i) seen_[i] = watched[static_cast<size_t>(i)].count.load(std::memory_order_acquire);
  current = this;
  if (python.run_and_raise != nullptr) arm();  // Python may have set a handler since
}

SignalWatch::~SignalWatch() { current = outer_; }

void SignalWatch::look() {
  if (python.run_and_raise == nullptr || current == nullptr) return;
  if (!is_main_thread()) return look_outside_python();
  if (python.run_and_raise()) end("a signal");
}

void SignalWatch::look_outside_python() {
  if (python.run_and_raise == nullptr || current == nullptr) return;
  // It may have come before this wait, while the framework computed.
  if (is_main_thread() && python.is_interrupt_pending()) end("SIGINT");
  if (ended.load() != current->ended_) throw Interrupted("a signal");
  for (int i = 0; i < kCount; ++i) {
    const Watched& one = watched[static_cast<size_t>(i)];
    if (one.count.load(std::memory_order_acquire) == current->seen_[i]) continue;
    const int64_t last_ns = one.last_ns.load(std::memory_order_relaxed);
    int64_t& first_ns = current->first_ns_[i];
    if (first_ns == 0) first_ns = last_ns;
    const bool is_second = last_ns - first_ns > kSameSignalNs;
    const bool is_late = now_ns() - first_ns > kSignalPatienceNs;
    if (is_second || is_late || (one.number == SIGINT && python.interrupts_by_raising())) end(one.name);
  }
}

}  // namespace rr
