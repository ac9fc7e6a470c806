#include "engine/status_answers.h"

#include <unistd.h>

#include <chrono>

#include "base/clock.h"
#include "os/process_state.h"
#include "os/thread.h"

namespace rr {
namespace {
constexpr auto kSample = std::chrono::milliseconds(100);
// Python's main thread gives up its lock every 5 ms where it can.
constexpr int64_t kLockPatienceNs = 700'000'000;
// Then another rank of the host answers: later than the rank itself would, and in time for who asks (stuck.cc).
constexpr int64_t kSilentNs = 1'200'000'000;
}  // namespace

StatusAnswers::StatusAnswers(From from)
    : from_(std::move(from)),
      statuses_(from_.world, from_.hosts),
      open_since_ns_(static_cast<size_t>(from_.world.size())) {}

void StatusAnswers::look() {
  const std::unique_lock lock(looking_, std::try_to_lock);
  if (!lock.owns_lock() || is_stopped_) return;
  const uint32_t changes = statuses_.changes();
  if (!is_any_open_ && changes == seen_changes_) return;
  seen_changes_ = changes;
  is_any_open_ = false;
  const int64_t now = now_ns();
  answer_for_this_rank(now);
  answer_for_silent_ranks(now);
}

void StatusAnswers::stop() {
  {
    const std::lock_guard lock(looking_);
    is_stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

std::string StatusAnswers::beginning() const {
  return "rank " + std::to_string(from_.rank) + " " + from_.calls() + "; its process " + std::to_string(::getpid()) +
         " on " + from_.hostname + " ";
}

void StatusAnswers::answer_for_this_rank(int64_t now) {
  if (thread_.joinable() && is_thread_done_.load(std::memory_order_acquire)) thread_.join();
  const uint64_t question = statuses_.question_to(from_.rank);
  if (question == 0) return;
  is_any_open_ = true;
  if (thread_.joinable()) {
    if (now - begun_ns_ < kLockPatienceNs) return;
    statuses_.answer(from_.rank, question,
                     beginning() + "runs, but holds Python's lock (the GIL) in a function of an extension");
    return;
  }
  begun_ns_ = now;
  is_thread_done_.store(false, std::memory_order_relaxed);
  thread_ = start_thread([this, question, begin = beginning()] {
    const ActivitySample activity;
    std::this_thread::sleep_for(kSample);
    const std::string used = activity.text();
    const WhereInProgram where = where_.load();
    const std::string place = where != nullptr ? where() : "";
    const std::string text = begin + used + (place.empty() ? "" : "; its main thread " + place);
    const Deadline deadline = Deadline::after_s(1);  // the lock is held for less than a microsecond, or its holder died
    while (!statuses_.answer(from_.rank, question, text) && !deadline.passed()) std::this_thread::yield();
    is_thread_done_.store(true, std::memory_order_release);
  });
}

void StatusAnswers::answer_for_silent_ranks(int64_t now) {
  for (const int rank : from_.hosts.here()) {
    if (rank == from_.rank) continue;
    const uint64_t question = statuses_.question_to(rank);
    int64_t& since_ns = open_since_ns_[static_cast<size_t>(rank)];
    if (question == 0) {
      since_ns = 0;
      continue;
    }
    is_any_open_ = true;
    if (since_ns == 0) since_ns = now;
    if (now - since_ns < kSilentNs) continue;
    const int pid = from_.pid_of(rank);
    statuses_.answer(rank, question,
                     "the process " + (pid != 0 ? std::to_string(pid) + " " : "") + "of rank " + std::to_string(rank) +
                         " on " + from_.hostname + " " + silence_of(pid));
  }
}

}  // namespace rr
