#include "relay/status/clock_relay.h"

#include <algorithm>

namespace rr {
namespace {

// Clocks of computers drift apart by up to 100 us in a second, and how fast they do changes in seconds. After the last
// round of a timeline nobody asks any more, so rounds are near to each other.
constexpr int64_t kRoundNs = 1'000'000'000;
constexpr int kQuestions = 10;  // of a round, one after the other: the quickest answer tells most
// While an answer is made, two clocks go apart by less than one part in so many of that time.
constexpr int64_t kDriftParts = 5000;

}  // namespace

void ClockRelay::collect() {
  const bool is_on = recorder_ != nullptr && recorder_->is_on();
  if (is_on != notes_arrivals_) note_arrivals(is_on);
  answer();
  if (!is_on || hosts_.is_first()) return;
  if (timeline_ != recorder_->timeline()) {
    timeline_ = recorder_->timeline();
    next_round_ns_ = 0;
  }
  if (asked_ns_ != 0) return;
  const int64_t now = now_ns();
  if (left_ == 0 && now >= next_round_ns_) {
    left_ = kQuestions;
    next_round_ns_ = now + kRoundNs;
  }
  if (left_ != 0) ask();
}

// On the links that carry questions and answers.
void ClockRelay::note_arrivals(bool wanted) {
  notes_arrivals_ = wanted;
  for (int host = 0; host < links_.count(); ++host) {
    if (!links_.is_here(host) && (host == 0 || hosts_.is_first())) links_[host].link->note_arrivals(wanted);
  }
}

// When the latest message of that host came: at the latest now.
int64_t ClockRelay::arrived_ns(int host) const {
  const int64_t arrived = links_[host].link->arrived_ns();
  return arrived == 0 ? now_ns() : std::min(arrived, now_ns());
}

void ClockRelay::ask() {
  --left_;
  asked_ns_ = now_ns();
  links_.send_to(0, FrameType::kClockAsked, hosts_.leader_here(), [](FrameWriter&) {});
}

// What was asked, just before the links send: the answer says when it leaves.
void ClockRelay::answer() {
  for (const Question& question : questions_) {
    links_.send_to(question.host, FrameType::kClock, hosts_.leader_here(), [&](FrameWriter& out) {
      out.put(question.came_ns);
      out.put(std::max(question.came_ns, now_ns()));
    });
  }
  questions_.clear();
}

void ClockRelay::apply_question(int host, FrameParser& frame) {
  frame.expect(hosts_.is_first(), "asks another host than the first for its clock");
  const auto is_of_host = [&](const Question& question) { return question.host == host; };
  frame.expect(std::none_of(questions_.begin(), questions_.end(), is_of_host), "asks again before it has an answer");
  questions_.push_back({host, arrived_ns(host)});
}

void ClockRelay::apply_answer(FrameParser& frame) {
  const auto question_ns = frame.take<int64_t>();  // when the question came there, and the answer left
  const auto answer_ns = frame.take<int64_t>();
  frame.expect(asked_ns_ != 0, "tells a clock that nobody has asked for");
  frame.expect(question_ns >= 0 && question_ns <= answer_ns, "tells a clock that goes backwards");
  Record record;
  record.type = RecordType::kClock;
  record.group = group_.number;
  record.peer = static_cast<int16_t>(group_.ranks[static_cast<size_t>(hosts_.leader(0))]);
  record.ended_ns = std::max(arrived_ns(0), asked_ns_);
  // As if the question had been asked later by the time that the answer took to be made.
  const int64_t made_ns = std::min(answer_ns - question_ns, record.ended_ns - asked_ns_);
  record.called_ns = asked_ns_ + made_ns - made_ns / kDriftParts;
  record.started_ns = answer_ns;
  asked_ns_ = 0;
  recorder_->add(timeline_, record);
}

}  // namespace rr
