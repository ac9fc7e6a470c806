#include "relay/status/status_relay.h"

#include <algorithm>
#include <iterator>

namespace rr {

void StatusRelay::collect() {
  write_answers();
  const uint32_t changes = statuses_.changes();
  if (changes == seen_changes_) return;
  bool is_all_read = true;
  for (size_t rank = 0; rank < asked_.size(); ++rank) {
    const int r = static_cast<int>(rank);
    const uint64_t question = hosts_.is_here(r) ? 0 : statuses_.question_to(r);
    if (question == 0 || question == asked_[rank]) continue;
    asked_[rank] = question;
    links_.send_to(hosts_.of[rank], FrameType::kStatusAsked, hosts_.leader_here(),
                   [&](FrameWriter& out) { out.put(static_cast<uint16_t>(r)); });
  }
  const auto is_answered = [&](const Question& question) {
    if (statuses_.question_to(question.rank) == question.number) return false;
    const std::optional<std::string> text = statuses_.answer_to(question.rank, question.number);
    if (!text) {
      is_all_read = false;  // another thread has the lock
      return false;
    }
    links_.send_to(question.host, FrameType::kStatus, question.rank, [&](FrameWriter& out) { out.put(*text); });
    return true;
  };
  questions_.erase(std::remove_if(questions_.begin(), questions_.end(), is_answered), questions_.end());
  if (is_all_read) seen_changes_ = changes;
}

void StatusRelay::apply_question(int host, FrameParser& frame) {
  const int rank = frame.take<uint16_t>();
  frame.expect(rank < static_cast<int>(asked_.size()) && hosts_.is_here(rank), "asks about a rank of another host");
  const uint64_t number = statuses_.ask(rank);
  const bool is_known = std::any_of(questions_.begin(), questions_.end(), [&](const Question& one) {
    return one.host == host && one.rank == rank && one.number == number;
  });
  if (!is_known) questions_.push_back({host, rank, number});
}

void StatusRelay::apply_answer(FrameParser& frame) {
  answers_[frame.head.rank] = frame.take_text(sizeof RankStatus::text);
  write_answers();
}

// An answer that nobody has asked for, or whose asker has been answered otherwise, says nothing.
void StatusRelay::write_answers() {
  for (auto one = answers_.begin(); one != answers_.end();) {
    const uint64_t question = statuses_.question_to(one->first);
    const bool is_over = question == 0 || statuses_.answer(one->first, question, one->second);
    one = is_over ? answers_.erase(one) : std::next(one);
  }
}

}  // namespace rr
