#include "engine/group/wait/late_operations.h"

#include <algorithm>
#include <cctype>

#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "engine/context.h"

namespace rr {
namespace {
// A rank has answered 0.5 s later, another one for it 2 s later; between hosts each takes 0.3 s longer.
constexpr double kLeadS = 2.5;    // and the warning waits so long for who has not answered
constexpr double kYoungS = 0.25;  // of no interest to UsualWaits either
constexpr double kUnderWayS = 60.0;
constexpr double kSilentHereS = 5.0;
constexpr double kSilentElsewhereS = 30.0;
constexpr int64_t kFreshNs = 3'000'000'000;
constexpr double kAnswerS = 2.0;  // a leader waits 1 s for Python's lock, and its answer has half a second to come

uint64_t hash_of(const std::vector<int>& ranks) {
  uint64_t hash = 0;
  for (const int rank : ranks) hash = mix(hash, static_cast<uint64_t>(rank) + 1);
  return hash;
}

double asked_at_s(double due_s) { return due_s - std::min(kLeadS, due_s / 2); }
}  // namespace

void LateOperations::look(Operation& operation, double age_s) {
  const double timeout_s = parts_.context.timeout_s();
  const double warning_s = parts_.from.settings.stall_warning_s;
  const double early_s = std::min(kYoungS, warning_s / 2);
  if (age_s < early_s && (timeout_s <= 0 || age_s < timeout_s / 2)) return;
  const bool asks_for_timeout = timeout_s > 0 && age_s > asked_at_s(timeout_s);
  const bool is_over = warning_s <= 0 || operation.warned.load(std::memory_order_relaxed);
  if (is_over && !asks_for_timeout) return;
  const std::vector<int> ranks = waits_for(operation);
  if (asks_for_timeout && ranks.empty() && operation.peer != kAnyPeer) {
    const std::vector<int> leaders = leaders_elsewhere();
    ask(leaders, leaders.size());
  } else if (asks_for_timeout) {
    ask(ranks);
  }
  if (is_over) return;
  const double late_s = late_after_s(operation, ranks, age_s);
  if (age_s > asked_at_s(late_s)) ask(ranks);
  if (age_s <= late_s || (age_s <= late_s + kLeadS && is_answer_awaited(ranks))) return;
  if (!is_for_this_rank_to_say(operation, ranks, age_s - late_s)) return;
  if (operation.warned.exchange(true) || is_told(operation, ranks)) return;
  warn(operation, ranks, age_s);
}

double LateOperations::late_after_s(const Operation& operation, const std::vector<int>& ranks, double age_s) {
  const Settings& settings = parts_.from.settings;
  if (settings.is_stall_warning_given) return settings.stall_warning_s;
  // Bytes under way take as long as they take.
  const bool is_under_way = operation.peer != -1 || ranks.empty();
  const double least_s = is_under_way ? kUnderWayS : settings.stall_warning_s;
  const double late_s = usual_.late_after_s(operation, age_s, least_s, now_ns());
  const double timeout_s = parts_.context.timeout_s();
  return timeout_s > 0 ? std::min(late_s, timeout_s / 2) : late_s;
}

// Where the leader of this host is stopped, nothing is known of other hosts: it is what stands in the way.
std::vector<int> LateOperations::waits_for(const Operation& operation) const {
  std::vector<int> missing = parts_.members.missing(operation);
  if (operation.peer == kAnyPeer) return missing;
  const std::vector<int> stopped = parts_.members.unresponsive(kUnresponsiveS);
  if (missing.empty()) return stopped;
  const int leader = parts_.from.world_ranks[static_cast<size_t>(parts_.from.hosts.leader_here())];
  const bool is_leader_stopped = std::find(stopped.begin(), stopped.end(), leader) != stopped.end();
  const Hosts& hosts = parts_.context.world().hosts();
  const bool are_all_here = std::all_of(missing.begin(), missing.end(), [&](int r) { return hosts.is_here(r); });
  if (is_leader_stopped && !are_all_here) return {leader};
  return missing;
}

// Questions go from the world's leader here to the world's leader there. Who is not asked, as one of these two is no
// member, is not found silent.
std::vector<int> LateOperations::leaders_elsewhere() const {
  const Hosts& hosts = parts_.from.hosts;
  const Hosts& of_world = parts_.context.world().hosts();
  const std::vector<int>& members = parts_.from.world_ranks;
  std::vector<int> ranks;
  if (!hosts.several() || members[static_cast<size_t>(hosts.leader_here())] != of_world.leader_here()) return ranks;
  for (int r = 0; r < parts_.from.size(); ++r) {
    const int rank = members[static_cast<size_t>(r)];
    const bool leads = of_world.leader(of_world.of[static_cast<size_t>(rank)]) == rank;
    if (leads && !hosts.is_here(r)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> LateOperations::silent_leaders() const {
  const int64_t since_ns = now_ns() - static_cast<int64_t>(kAnswerS * 1e9);
  const std::lock_guard lock(mutex_);
  std::vector<int> silent;
  for (const int rank : leaders_elsewhere()) {
    const Question asked = asked_of(rank);
    const RankStatuses& statuses = parts_.context.statuses();
    const auto is_open = [&](uint64_t question) { return question != 0 && !statuses.answer_to(rank, question); };
    if (is_open(asked.number) && (asked.asked_ns < since_ns || is_open(asked.earlier))) silent.push_back(rank);
  }
  return silent;
}

void LateOperations::ask(const std::vector<int>& ranks, size_t most) {
  const int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  questions_.resize(static_cast<size_t>(parts_.context.world().size()));
  for (size_t i = 0; i < std::min(ranks.size(), most); ++i) {
    Question& question = questions_[static_cast<size_t>(ranks[i])];
    if (question.number != 0 && now - question.asked_ns < kFreshNs) continue;
    question = {parts_.context.statuses().ask(ranks[i]), question.number, now};
  }
}

LateOperations::Question LateOperations::asked_of(int world_rank) const {
  const size_t at = static_cast<size_t>(world_rank);
  return at < questions_.size() ? questions_[at] : Question();
}

bool LateOperations::is_answer_awaited(const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    const uint64_t question = asked_of(rank).number;
    return question != 0 && !parts_.context.statuses().answer_to(rank, question);
  });
}

// Whether earlier warnings say it all: a program that has called hundreds of operations waits for one rank in all of
// them.
bool LateOperations::is_told(const Operation& operation, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  if (told_ns_ < operation.submitted_ns) told_ranks_.clear();
  const bool is_told = told_ns_ > operation.submitted_ns && std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
                         return std::find(told_ranks_.begin(), told_ranks_.end(), rank) != told_ranks_.end();
                       });
  if (is_told) return true;
  told_ranks_.insert(told_ranks_.end(), ranks.begin(), ranks.end());
  told_ns_ = now_ns();
  return false;
}

// Of the ranks that have announced the operation the lowest one speaks. Where it does not, because it is stopped or
// keeps silent, another one does: of its host 5 s later, of other hosts, who do not see whether it has spoken, 30 s.
bool LateOperations::is_for_this_rank_to_say(Operation& operation, const std::vector<int>& ranks,
                                             double overdue_s) const {
  if (operation.ticket.tag == 0) return true;  // a message, of which nobody else knows
  const std::vector<int> stopped = parts_.members.unresponsive(kUnresponsiveS);
  for (int r = 0; r < parts_.from.rank; ++r) {
    const bool is_here = parts_.from.hosts.is_here(r);
    const int world_rank = parts_.from.world_ranks[static_cast<size_t>(r)];
    const bool runs = std::find(stopped.begin(), stopped.end(), world_rank) == stopped.end();
    if (!runs || !parts_.negotiation.requests().has_announced_since(operation.ticket, r)) continue;
    const Header& header = parts_.context.world().control().header();
    if (header.warned_ns.load() > operation.submitted_ns && header.warned_of.load() == hash_of(ranks)) {
      operation.warned.store(true);
      return false;
    }
    if (overdue_s < (is_here ? kSilentHereS : kSilentElsewhereS)) return false;
  }
  return true;
}

void LateOperations::warn(const Operation& operation, const std::vector<int>& ranks, double age_s) const {
  const std::vector<int> missing = parts_.members.missing(operation);
  std::string text = parts_.from.where(operation) + " has been waiting for " + seconds_text(age_s) + " s";
  if (!ranks.empty()) text += " for rank(s) " + some_of(ranks);
  if (operation.peer == kAnyPeer) {
    text += "; no rank has sent a message for it";
  } else if (missing.empty()) {
    text += "; every rank has submitted it";
  } else if (operation.peer == -1) {
    text += ranks == missing ? "; the other ranks have submitted it" : ", which passes on what other hosts say";
  }
  Header& header = parts_.context.world().control().header();
  header.warned_of.store(hash_of(ranks));
  header.warned_ns.store(now_ns());
  parts_.from.log.warning(text + where_they_stand(ranks));
}

std::string LateOperations::silence_of(int world_rank) const {
  const Hosts& hosts = parts_.context.world().hosts();
  const int leader = hosts.leader(hosts.of[static_cast<size_t>(world_rank)]);
  const bool is_passed_on = leader != world_rank && !hosts.is_here(world_rank);
  return "rank " + std::to_string(world_rank) + " has not said where it stands" +
         (is_passed_on ? ", nor has rank " + std::to_string(leader) + " of its host" : "");
}

std::string LateOperations::where_they_stand(const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kShownRanks); ++i) {
    const Question asked = asked_of(ranks[i]);
    std::optional<std::string> answer;
    for (const uint64_t question : {asked.number, asked.earlier}) {
      if (question != 0 && !answer) answer = parts_.context.statuses().answer_to(ranks[i], question);
    }
    if (!answer) answer = silence_of(ranks[i]);
    if (answer->empty()) continue;
    (*answer)[0] = static_cast<char>(std::toupper(static_cast<unsigned char>((*answer)[0])));
    text += (i == 0 ? ". " : " ") + *answer + ".";
  }
  return text;
}

}  // namespace rr
