#include "relay/clock_relay.h"

namespace rr {
namespace {

// Clocks of computers drift apart by up to 100 us in a second, and how fast they do changes in seconds. After the last
// round of a timeline nobody asks any more, so rounds are near to each other.
constexpr int64_t kRoundNs = 1'000'000'000;
constexpr int kQuestions = 10;  // of a round, one after the other: the quickest answer tells most

}  // namespace

void ClockRelay::collect() {
  if (recorder_ == nullptr || hosts_.is_first() || !recorder_->is_on()) return;
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
  if (left_ != 0) ask(now);
}

void ClockRelay::ask(int64_t now_ns) {
  --left_;
  asked_ns_ = now_ns;
  links_.send_to(0, FrameType::kClockAsked, hosts_.leader_here(), [](FrameWriter&) {});
}

void ClockRelay::apply_question(int host, FrameParser& frame) {
  frame.expect(hosts_.is_first(), "asks another host than the first for its clock");
  links_.send_to(host, FrameType::kClock, hosts_.leader_here(), [](FrameWriter& out) { out.put(now_ns()); });
}

void ClockRelay::apply_answer(FrameParser& frame) {
  const auto clock_ns = frame.take<int64_t>();
  frame.expect(asked_ns_ != 0, "tells a clock that nobody has asked for");
  Record record;
  record.type = RecordType::kClock;
  record.group = group_.number;
  record.peer = static_cast<int16_t>(group_.ranks[static_cast<size_t>(hosts_.leader(0))]);
  record.called_ns = asked_ns_;
  record.started_ns = clock_ns;
  record.ended_ns = now_ns();
  asked_ns_ = 0;
  recorder_->add(timeline_, record);
  collect();
}

}  // namespace rr
