#include "engine/late/status_answers.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/poll.h"
#include "os/process_state.h"
#include "os/thread.h"

namespace rr {
namespace {
constexpr auto kSample = std::chrono::milliseconds(100);
// Python's main thread gives up its lock every 5 ms where it can.
constexpr int64_t kPatienceNs = 1'000'000'000;
// Then another rank of the host answers: later than the rank itself would, and in time for who asks
// (group/wait/late_operations.cc).
constexpr int64_t kSilentNs = 1'600'000'000;
constexpr double kStopS = 2;
}  // namespace

StatusAnswers::StatusAnswers(From from)
    : from_(std::move(from)), statuses_(from_.world, from_.hosts), open_(static_cast<size_t>(from_.world.size())) {}

void StatusAnswers::look() noexcept {
  try {
    const std::unique_lock lock(looking_, std::try_to_lock);
    if (!lock.owns_lock() || is_stopped_) return;
    const uint32_t changes = statuses_.changes();
    if (!is_any_open_ && changes == seen_changes_) return;
    seen_changes_ = changes;
    is_any_open_ = false;
    const int64_t now = now_ns();
    answer_for_this_rank(now);
    answer_for_silent_ranks(now);
  } catch (const std::exception&) {  // out of memory, or of threads: another rank says that this one does not answer
  }
}

void StatusAnswers::stop() {
  std::shared_ptr<Guarded<Finding>> finding;
  {
    const std::lock_guard lock(looking_);
    is_stopped_ = true;
    finding = finding_;
  }
  poll_until([&] { return finding == nullptr || finding->lock()->is_done; }, Deadline::after_s(kStopS));
}

// The thread is detached because nobody can end one that hangs. It touches nothing of the context.
void StatusAnswers::begin_to_find() {
  const auto finding = std::make_shared<Guarded<Finding>>();
  finding->lock()->has_lock = where_.load() == nullptr;  // a program without Python
  start_thread([finding, where = where_.load()] {
    const ActivitySample activity;
    if (where != nullptr) {
      where([&](const std::string& place) {
        const auto found = finding->lock();
        found->has_lock = true;
        found->place = place;
      });
    }
    std::this_thread::sleep_for(kSample);
    const auto found = finding->lock();
    found->activity = activity.text();
    found->is_done = true;
  }).detach();
  finding_ = finding;
}

std::string StatusAnswers::text(const Finding& finding) const {
  std::string text = "rank " + std::to_string(from_.rank) + " " + calls_ + "; its process " +
                     std::to_string(::getpid()) + " on " + from_.hostname + " ";
  if (!finding.is_done && !finding.has_lock)
    return text + "runs, but holds Python's lock (the GIL) in a function of an extension";
  text += finding.activity.empty() ? "runs" : finding.activity;
  if (!finding.place.empty()) text += "; its main thread " + finding.place;
  const std::string late = from_.late_here();
  return text + (late.empty() ? "" : "; on its host " + late);
}

void StatusAnswers::answer_for_this_rank(int64_t now) {
  const uint64_t question = statuses_.question_to(from_.rank);
  if (question == 0) return;
  is_any_open_ = true;
  if (finding_ != nullptr && question_ != question && finding_->lock()->is_done)
    finding_ = nullptr;  // of an earlier one
  if (finding_ == nullptr) {
    calls_ = from_.calls();
    begun_ns_ = now;
    question_ = question;
    begin_to_find();
    return;
  }
  const Finding finding = *finding_->lock();
  if (!finding.is_done && now - begun_ns_ < kPatienceNs) return;
  if (question_ != question) calls_ = from_.calls();  // the thread hangs since an earlier one
  statuses_.answer(from_.rank, question, text(finding));
}

void StatusAnswers::answer_for_silent_ranks(int64_t now) {
  for (const int rank : from_.hosts.here()) {
    if (rank == from_.rank) continue;
    const uint64_t question = statuses_.question_to(rank);
    if (question == 0) continue;
    is_any_open_ = true;
    OpenQuestion& open = open_[static_cast<size_t>(rank)];
    if (open.number != question) open = {question, now};
    if (now - open.since_ns < kSilentNs) continue;
    const int pid = from_.pid_of(rank);
    statuses_.answer(rank, question,
                     "the process " + (pid != 0 ? std::to_string(pid) + " " : "") + "of rank " + std::to_string(rank) +
                         " on " + from_.hostname + " " + silence_of(pid));
  }
}

}  // namespace rr
