#include "engine/group/late_operations.h"

#include <algorithm>
#include <cctype>

#include "base/clock.h"
#include "base/text.h"
#include "engine/context.h"

namespace rr {
namespace {
// A rank has answered 0.4 s later, another one for it 1.6 s later; between hosts each takes 0.3 s longer.
constexpr double kLeadS = 2.0;  // and the word waits so long for who has not answered
constexpr int64_t kFreshNs = 3'000'000'000;

double asked_at_s(double due_s) { return due_s - std::min(kLeadS, due_s / 2); }
}  // namespace

void LateOperations::look(Operation& operation, double age_s) {
  const double timeout_s = parts_.context.timeout_s();
  const double least_s = parts_.from.settings.stall_warning_s;
  if (timeout_s > 0 && age_s > asked_at_s(timeout_s)) ask(operation);
  if (least_s <= 0 || operation.warned.load(std::memory_order_relaxed)) return;
  const double due_s = usual_.late_after_s(operation, age_s, least_s, now_ns());
  if (age_s > asked_at_s(due_s)) ask(operation);
  if (age_s <= due_s || (age_s <= due_s + kLeadS && is_answer_awaited(operation))) return;
  if (operation.warned.exchange(true)) return;
  if (is_told(operation, waits_for(operation)) || !is_for_this_rank_to_say(operation)) return;
  warn(operation, age_s);
}

std::vector<int> LateOperations::waits_for(const Operation& operation) const {
  const std::vector<int> missing = parts_.members.missing(operation);
  if (!missing.empty() || operation.peer == kAnyPeer) return missing;
  return parts_.members.unresponsive(kUnresponsiveS);
}

void LateOperations::ask(const Operation& operation) {
  const int64_t now = now_ns();
  const std::vector<int> ranks = waits_for(operation);
  const std::lock_guard lock(mutex_);
  questions_.resize(static_cast<size_t>(parts_.context.world().size()));
  for (size_t i = 0; i < std::min(ranks.size(), kShownRanks); ++i) {
    Question& question = questions_[static_cast<size_t>(ranks[i])];
    if (question.number != 0 && now - question.asked_ns < kFreshNs) continue;
    question = {parts_.context.statuses().ask(ranks[i]), now};
  }
}

bool LateOperations::is_answer_awaited(const Operation& operation) const {
  const std::vector<int> ranks = waits_for(operation);
  const std::lock_guard lock(mutex_);
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    const size_t at = static_cast<size_t>(rank);
    const uint64_t question = at < questions_.size() ? questions_[at].number : 0;
    return question != 0 && !parts_.context.statuses().answer_to(rank, question);
  });
}

// Whether the last word says it all: a program that has called hundreds of operations waits for one rank in all of
// them.
bool LateOperations::is_told(const Operation& operation, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  const bool is_told = told_ns_ > operation.submitted_ns && ranks == told_ranks_;
  if (!is_told) {
    told_ranks_ = ranks;
    told_ns_ = now_ns();
  }
  return is_told;
}

// Of the ranks that have announced the operation the lowest one speaks, if it runs, as far as that is known.
bool LateOperations::is_for_this_rank_to_say(const Operation& operation) const {
  if (operation.ticket.tag == 0) return true;  // a message, of which nobody else knows
  const std::vector<int> stopped = parts_.members.unresponsive(kUnresponsiveS);
  for (int r = 0; r < parts_.from.rank; ++r) {
    const int world_rank = parts_.from.world_ranks[static_cast<size_t>(r)];
    const bool runs = std::find(stopped.begin(), stopped.end(), world_rank) == stopped.end();
    if (runs && parts_.negotiation.requests().has_announced_since(operation.ticket, r)) return false;
  }
  return true;
}

void LateOperations::warn(const Operation& operation, double age_s) const {
  const bool is_submitted = parts_.members.missing(operation).empty();
  const std::vector<int> ranks = waits_for(operation);
  parts_.from.log.warning(parts_.from.where(operation) + " has been waiting for " + seconds_text(age_s) + " s" +
                          (ranks.empty() ? "" : " for rank(s) " + some_of(ranks)) +
                          (is_submitted ? "; every rank has submitted it" : "; the other ranks have submitted it") +
                          where_they_stand(operation));
}

std::string LateOperations::where_they_stand(const Operation& operation) const {
  const std::vector<int> ranks = waits_for(operation);
  const std::lock_guard lock(mutex_);
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kShownRanks); ++i) {
    const size_t rank = static_cast<size_t>(ranks[i]);
    const uint64_t question = rank < questions_.size() ? questions_[rank].number : 0;
    std::optional<std::string> answer;
    if (question != 0) answer = parts_.context.statuses().answer_to(ranks[i], question);
    if (!answer) answer = "rank " + std::to_string(ranks[i]) + " has not said where it stands";
    if (answer->empty()) continue;
    (*answer)[0] = static_cast<char>(std::toupper(static_cast<unsigned char>((*answer)[0])));
    text += (i == 0 ? ". " : " ") + *answer + ".";
  }
  return text;
}

}  // namespace rr
