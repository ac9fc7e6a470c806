#include "engine/wait_sampler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "engine/peer_watch.h"
#include "os/thread.h"

namespace rr {
namespace {
constexpr int64_t kPauseNs = 50'000'000;
constexpr int64_t kIdlePauseNs = 250'000'000;  // where nobody has waited for a second
constexpr int64_t kIdleAfterNs = 1'000'000'000;
constexpr int64_t kAgainNs = 5'000'000;
constexpr int64_t kJudgeNs = 100'000'000;
constexpr int64_t kAnswerNs = 3'000'000'000;  // a rank of another host has so long to say where it stands
constexpr int64_t kLongNs = 500'000'000;      // a sample that is later stands for no more: nobody looked

int percent(int64_t part, int64_t whole) { return whole <= 0 ? 0 : static_cast<int>(100 * part / whole); }
}  // namespace

WaitSampler::WaitSampler(const From& from)
    : from_(from),
      world_(from.groups.world()),
      late_ranks_(static_cast<size_t>(world_.size()), from.late_share),
      doing_(static_cast<size_t>(world_.size())) {
  thread_ = start_thread([this] { run(); });
}

void WaitSampler::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool WaitSampler::pause(int64_t ns) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::nanoseconds(ns), [this] { return is_over_; });
}

void WaitSampler::run() {
  looked_ns_ = judged_ns_ = now_ns();
  while (pause(looked_ns_ - waited_ns_ > kIdleAfterNs ? kIdlePauseNs : kPauseNs)) {
    const Waits seen = waits();
    const int64_t now = now_ns();
    const int64_t dt_ns = std::min(now - looked_ns_, kLongNs);
    looked_ns_ = now;
    const ControlSegment& control = world_.control();
    control.header().sampled_ns.fetch_add(dt_ns, std::memory_order_relaxed);
    for (int r = 0; r < world_.size(); ++r) {
      if (!seen.waiting[static_cast<size_t>(r)]) continue;
      waited_ns_ = now;
      control.score(r).waited_ns.fetch_add(dt_ns, std::memory_order_relaxed);
    }
    for (const int r : seen.late) control.score(r).late_ns.fetch_add(dt_ns, std::memory_order_relaxed);
    if (look_at(seen) && pause(kAgainNs)) look_at(waits());
    // Of the operations of the log the other hosts do not know who is missing.
    if (from_.late_share <= 0 || !world_.hosts().is_first()) continue;
    late_ranks_.add(now, dt_ns, seen.late, seen.operation);
    tell_of_asked();
    if (now - judged_ns_ < kJudgeNs) continue;
    judged_ns_ = now;
    for (const LateRanks::Found& found : late_ranks_.find(now)) tell(found);
  }
}

WaitSampler::Waits WaitSampler::waits() {
  Waits waits;
  waits.waiting.resize(static_cast<size_t>(world_.size()));
  std::vector<bool> is_missing(static_cast<size_t>(world_.size()));
  const std::vector<std::shared_ptr<Group>> groups = from_.groups.listed();
  for (const int rank : world_.hosts().here()) {
    const SeenWait wait = seen_wait(rank);
    if (!wait.is_any) continue;
    const Group* group = wait.group == world_.id() ? &world_ : nullptr;
    for (const std::shared_ptr<Group>& one : groups) {
      if (one->id() == wait.group) group = one.get();
    }
    std::vector<int> missing;  // of a group without this rank nobody here can tell
    if (group != nullptr) missing = group->negotiation().requests().missing(wait.ticket);
    for (int& m : missing) m = group->ranks()[static_cast<size_t>(m)];
    // What was read in the middle of a change is an operation that never was.
    if (std::find(missing.begin(), missing.end(), rank) != missing.end()) continue;
    waits.waiting[static_cast<size_t>(rank)] = true;
    for (const int m : missing) is_missing[static_cast<size_t>(m)] = true;
    if (missing.empty()) continue;
    waits.operation = mix(mix(static_cast<uint64_t>(wait.group), wait.ticket.request_slot), wait.ticket.tag);
  }
  for (int r = 0; r < world_.size(); ++r) {
    const size_t at = static_cast<size_t>(r);
    if (is_missing[at] && !waits.waiting[at] && !has_left(world_.control().line(r))) waits.late.push_back(r);
  }
  return waits;
}

// A thread that waits while the program's main thread computes, DDP's completer say, costs no time.
WaitSampler::SeenWait WaitSampler::seen_wait(int rank) {
  const WaitLine& line = world_.control().wait_line(rank);
  const uint64_t slot = line.slot.load(std::memory_order_acquire);
  if (slot == 0 || slot > world_.control().request_slot_count()) return {};
  const bool is_main_thread = line.is_main_thread.load(std::memory_order_relaxed) != 0;
  if (!is_main_thread && is_main_thread_on_cpu(pid_of(rank))) return {};
  return {true, line.group.load(std::memory_order_relaxed), {slot - 1, line.tag.load(std::memory_order_relaxed)}};
}

int WaitSampler::pid_of(int rank) { return rank == world_.rank() ? ::getpid() : from_.peers.pid_of(rank); }

bool WaitSampler::look_at(const Waits& waits) {
  bool is_any_new = false;
  for (const int rank : waits.late) {
    if (world_.hosts().of[static_cast<size_t>(rank)] != world_.hosts().mine) continue;
    const int pid = pid_of(rank);
    if (pid == 0) continue;
    const ProcessTimes times = times_of(pid);
    const int64_t now = now_ns();
    Doing& doing = doing_[static_cast<size_t>(rank)];
    if (doing.operation == waits.operation) {
      doing.looked_for_ns += now - doing.looked_ns;
      doing.sums.cpu_ns += times.cpu_ns - doing.times.cpu_ns;
      doing.sums.queued_ns += times.queued_ns - doing.times.queued_ns;
    } else {
      is_any_new = true;
    }
    doing.operation = waits.operation;
    doing.looked_ns = now;
    doing.times = times;
  }
  return is_any_new;
}

std::string WaitSampler::doing_text(int rank) const {
  constexpr int kQueued = 25;  // percent of the time: that is why it is late
  constexpr int kOnCpu = 50;
  const Doing& doing = doing_[static_cast<size_t>(rank)];
  if (doing.looked_for_ns == 0) return "what it does meanwhile was not seen";
  const int used = percent(doing.sums.cpu_ns, doing.looked_for_ns);
  const int queued = percent(doing.sums.queued_ns, doing.looked_for_ns);
  const std::string core = std::to_string(used) + " % of a core";
  if (queued >= kQueued) {
    return "its cores are taken: meanwhile it used " + core + ", and waited for one " + std::to_string(queued) +
           " % of the time";
  }
  if (used >= kOnCpu) return "it was on CPU meanwhile (" + core + ")";
  return "meanwhile it waited itself, for input, a disk, a lock or a device (" + core + ")";
}

void WaitSampler::tell(const LateRanks::Found& found) {
  if (!world_.hosts().is_here(found.rank)) {
    asked_.push_back({found, from_.statuses.ask(found.rank), now_ns()});
    return;
  }
  from_.log.warning(word_of(found) + "; " + doing_text(found.rank));
  doing_[static_cast<size_t>(found.rank)] = Doing();
}

// Of ranks of other hosts, whose cores only their own host sees.
void WaitSampler::tell_of_asked() {
  const int64_t now = now_ns();
  const auto is_told = [&](const Asked& one) {
    const std::optional<std::string> answer = from_.statuses.answer_to(one.found.rank, one.question);
    if (!answer && now - one.asked_ns < kAnswerNs) return false;
    from_.log.warning(word_of(one.found) + (answer ? ". Asked where it stands: " + *answer : ""));
    return true;
  };
  asked_.erase(std::remove_if(asked_.begin(), asked_.end(), is_told), asked_.end());
}

std::string WaitSampler::word_of(const LateRanks::Found& found) const {
  return world_.here() + "] rank " + std::to_string(found.rank) + " is late: in the last " +
         seconds_text(found.window_s) + " s the others waited for it " +
         std::to_string(static_cast<int>(100 * found.share)) + " % of the time, in " +
         std::to_string(found.operations) + " operations";
}

}  // namespace rr
