#include "engine/late/wait_sampler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <system_error>

#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "engine/peer_watch.h"
#include "engine/remote_link.h"
#include "os/thread.h"

namespace rr {
namespace {
// 50 ms in the mean, at random, so that no job's steps keep time with the samples.
constexpr int64_t kPauseLeastNs = 25'000'000;
constexpr int64_t kPauseMostNs = 75'000'000;
constexpr int64_t kIdlePauseNs = 250'000'000;  // where nobody has waited for a second
constexpr int64_t kIdleAfterNs = 1'000'000'000;
// A rank that the others wait for is late if they still do so much later, in the same operation. What a rank of another
// host calls is known here once a message has come, behind data that may take a millisecond: without the second look,
// half the time of a loop of short operations would be waits for that rank (named, 4 and 64 KiB, 2 hosts: 8 of 12 loops
// of 2 s had a warning, now none).
constexpr int64_t kLateLeastNs = 1'000'000;
constexpr int64_t kAgainNs = 5'000'000;
constexpr int64_t kJudgeNs = 200'000'000;
constexpr int64_t kLinksNs = 1'000'000'000;
constexpr int64_t kAnswerNs = 3'000'000'000;    // a rank of another host has so long to say where it stands
constexpr int64_t kSampleMostNs = 500'000'000;  // a sample that is later stands for no more: nobody looked

size_t candidates(const Hosts& hosts) {
  return hosts.here().size() + (hosts.is_first() ? static_cast<size_t>(hosts.count()) - 1 : 0);
}
}  // namespace

WaitSampler::WaitSampler(const From& from)
    : from_(from),
      world_(from.groups.world()),
      late_ranks_(static_cast<size_t>(world_.size()), candidates(world_.hosts()), from.late_share),
      slow_links_(from.late_share),
      link_records_(from.recorder, world_.recorded_group(), world_.control(), world_.hosts()),
      activity_(world_, from.peers),
      random_(static_cast<uint32_t>(now_ns())) {
  try {
    thread_ = start_thread([this] { run(); });
  } catch (const std::system_error& error) {
    from_.log.info(std::string("who waits for whom is not sampled: ") + error.what());
  }
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
  std::uniform_int_distribution<int64_t> usual_pause(kPauseLeastNs, kPauseMostNs);
  waited_ns_ = looked_ns_;
  while (pause(looked_ns_ - waited_ns_ > kIdleAfterNs ? kIdlePauseNs : usual_pause(random_))) {
    try {
      sample();
    } catch (const std::exception&) {  // out of memory: a job does not end because of its statistics
    }
  }
}

void WaitSampler::sample() {
  from_.links.sample();
  Waits seen = waits();
  if (!seen.late.empty() && pause(kLateLeastNs)) {
    seen.late = LateRanks::still_late(std::move(seen.late), waits().late);
  }
  const int64_t now = now_ns();
  const int64_t dt_ns = std::min(now - looked_ns_, kSampleMostNs);
  looked_ns_ = now;
  link_records_.add(now);
  const ControlSegment& control = world_.control();
  uint64_t waits_so_far = 0;
  for (const int r : world_.hosts().here()) {
    waits_so_far += control.wait_line(r).number.load(std::memory_order_relaxed);
    if (!seen.is_waiting[static_cast<size_t>(r)]) continue;
    waited_ns_ = now;
    control.score(r).waited_ns.fetch_add(dt_ns, std::memory_order_relaxed);
  }
  if (waits_so_far != waits_so_far_) waited_ns_ = now;  // one may have begun and ended between two samples
  waits_so_far_ = waits_so_far;
  for (const LateRanks::Late& late : seen.late)
    control.score(late.rank).late_ns.fetch_add(dt_ns, std::memory_order_relaxed);
  control.header().sampled_at_ns.store(now, std::memory_order_relaxed);
  control.header().sampled_ns.fetch_add(dt_ns, std::memory_order_release);
  if (activity_.look(seen.late) && pause(kAgainNs)) activity_.look(waits().late);
  late_ranks_.add(now, dt_ns, std::move(seen.late));
  tell_of_asked(now);
  if (now - judged_ns_ >= kJudgeNs) judge(now);
}

WaitSampler::Waits WaitSampler::waits() {
  Waits waits;
  waits.is_waiting.resize(static_cast<size_t>(world_.size()));
  std::vector<uint64_t> missed_in(static_cast<size_t>(world_.size()));  // an operation; 0: nobody misses the rank
  const std::vector<std::shared_ptr<Group>> groups = from_.groups.listed();
  const Hosts& hosts = world_.hosts();
  for (const int rank : hosts.here()) {
    const SeenWait wait = seen_wait(rank);
    if (!wait.is_any) continue;
    waits.is_waiting[static_cast<size_t>(rank)] = true;
    const Group* group = wait.group == world_.id() ? &world_ : nullptr;
    for (const std::shared_ptr<Group>& one : groups) {
      if (one->id() == wait.group) group = one.get();
    }
    std::vector<int> missing;  // of a group without this rank nobody here can tell
    if (group != nullptr) missing = group->negotiation().requests().missing(wait.ticket);
    for (int& m : missing) m = group->ranks()[static_cast<size_t>(m)];
    // What was read in the middle of a change is an operation that never was.
    if (std::find(missing.begin(), missing.end(), rank) != missing.end()) continue;
    const uint64_t operation =
        mix(mix(static_cast<uint64_t>(wait.group) + 1, wait.ticket.request_slot), wait.ticket.tag);
    for (const int m : missing) {
      if (!is_here(m) && !hosts.is_first()) continue;
      const int judged = is_here(m) ? m : hosts.leader(hosts.of[static_cast<size_t>(m)]);
      missed_in[static_cast<size_t>(judged)] = operation;
    }
  }
  size_t waiting = 0;
  size_t others = 0;
  for (int r = 0; r < world_.size(); ++r) {
    const size_t at = static_cast<size_t>(r);
    const bool is_late = missed_in[at] != 0 && !waits.is_waiting[at] && !has_left(world_.control().line(r));
    if (is_late) waits.late.push_back({r, missed_in[at]});
    if (!is_here(r)) continue;
    waiting += waits.is_waiting[at] ? 1 : 0;
    others += is_late ? 0 : 1;
  }
  if (2 * waiting < others) waits.late.clear();  // one rank that waits is not all of them
  return waits;
}

// A thread that waits while the program's main thread computes, DDP's completer say, costs no time.
WaitSampler::SeenWait WaitSampler::seen_wait(int rank) {
  const WaitLine& line = world_.control().wait_line(rank);
  const uint64_t slot = line.slot.load(std::memory_order_acquire);
  if (slot == 0) return {};
  const bool is_main_thread = line.is_main_thread.load(std::memory_order_relaxed) != 0;
  if (!is_main_thread && is_main_thread_on_cpu(activity_.pid_of(rank))) return {};
  if (slot > world_.control().request_slot_count()) return {true, world_.id(), {}};
  return {true, line.group.load(std::memory_order_relaxed), {slot - 1, line.tag.load(std::memory_order_relaxed)}};
}

void WaitSampler::judge(int64_t now_ns) {
  judged_ns_ = now_ns;
  if (from_.late_share <= 0) return;
  judge_links(now_ns);
  std::string here;
  if (from_.is_only_context()) {
    for (const LateRanks::Found& found : late_ranks_.late_now(now_ns)) {
      if (is_here(found.rank)) here += (here.empty() ? "" : "; ") + text_of(found) + "; " + activity_.text(found.rank);
    }
  }
  show(here);
  if (!from_.is_only_context() || !world_.hosts().is_first()) return;  // the first host asks
  for (const LateRanks::Found& found : late_ranks_.find(now_ns)) tell(found);
}

void WaitSampler::show(const std::string& late_here) {
  *late_here_.lock() = late_here;
  const std::string text = late_here + (late_here.empty() || slow_links_text_.empty() ? "" : "; ") + slow_links_text_;
  if (text == shown_) return;
  LateText told = {};
  write_text(told.text, text);
  world_.control().late_text().write(told);
  shown_ = text;
}

// Of samples of the links there is a new one each second.
void WaitSampler::judge_links(int64_t now_ns) {
  const Hosts& hosts = world_.hosts();
  if (!hosts.several() || !hosts.is_first() || now_ns - links_looked_ns_ < kLinksNs) return;
  links_looked_ns_ = now_ns;
  slow_links_.add(now_ns, links_of(world_.control(), hosts));
  slow_links_text_ = text_of(slow_links_.slow_now());
  const std::string warning = text_of(slow_links_.find(now_ns));
  if (!warning.empty()) from_.log.warning(world_.here() + "] " + warning);
}

std::string WaitSampler::text_of(const std::vector<SlowLinks::Found>& links) const {
  std::string text;
  for (const SlowLinks::Found& link : links) {
    char carried[120];
    std::snprintf(carried, sizeof carried, "it carried %.1f MB/s while it was busy, %d %% of the last %.0f s; ",
                  link.rate * 1e-6, static_cast<int>(100 * link.share), link.window_s);
    char others[60] = "no other one was busy";
    if (!std::isinf(link.others_rate)) {
      std::snprintf(others, sizeof others, "the slowest other one %.1f MB/s", link.others_rate * 1e-6);
    }
    text += (text.empty() ? "" : "; ") +
            ("the link from host " + hostname_of(link.from) + " to host " + hostname_of(link.to) + " is slow: ") +
            carried + others;
  }
  return text;
}

std::string WaitSampler::hostname_of(int host) const {
  const ControlSegment& control = world_.control();
  const int leader = world_.hosts().leader(host);
  if (is_here(leader)) return control.facts(leader).hostname;
  const std::optional<RankElsewhere> told = control.rank_elsewhere(leader).read();
  const std::string name = told ? text_from(told->shown.hostname) : "";
  return name.empty() ? std::to_string(host) : name;
}

void WaitSampler::tell(const LateRanks::Found& found) {
  if (!is_here(found.rank)) {
    asked_.push_back({found, from_.statuses.ask(found.rank), now_ns()});
    return;
  }
  from_.log.warning(world_.here() + "] " + text_of(found) + "; " + activity_.text(found.rank));
}

void WaitSampler::tell_of_asked(int64_t now_ns) {
  const auto is_told = [&](const Asked& one) {
    const std::optional<std::string> answer = from_.statuses.answer_to(one.found.rank, one.question);
    if (!answer && now_ns - one.asked_ns < kAnswerNs) return false;
    from_.log.warning(world_.here() + "] " + text_of(one.found) +
                      (answer ? ". Asked where it stands: " + *answer : ""));
    return true;
  };
  asked_.erase(std::remove_if(asked_.begin(), asked_.end(), is_told), asked_.end());
}

std::string WaitSampler::text_of(const LateRanks::Found& found) const {
  const Hosts& hosts = world_.hosts();
  const size_t host = static_cast<size_t>(hosts.of[static_cast<size_t>(found.rank)]);
  const bool is_one_of_many = !is_here(found.rank) && hosts.members[host].size() > 1;
  return "rank " + std::to_string(found.rank) + (is_one_of_many ? ", or another one of its host," : "") +
         " is late: in the last " + seconds_text(found.window_s) + " s the others waited for it " +
         std::to_string(static_cast<int>(100 * found.share)) + " % of the time, in " +
         std::to_string(found.operations) + " operations";
}

}  // namespace rr
