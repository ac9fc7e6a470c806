// What leaders ask and tell each other besides operations: what ranks do, clocks, what `ringreduce top` shows.

#include "doctest/doctest.h"
#include "support/scripted_leader.h"

namespace rr::test {
namespace {

TEST_CASE("frames: an answer waits for the lock that somebody has") {
  const Environment environment{};
  Listener listener;
  const Hosts hosts(kHostOf, kMe);
  const RankStatuses statuses(listener.control(), hosts);
  const uint64_t question = statuses.ask(1);
  CHECK(listener.hear() == "");
  CHECK(listener.answers == std::vector<FrameType>{FrameType::kStatusAsked});
  REQUIRE(listener.control().header().lock.try_acquire());
  listener.said.begin(FrameType::kStatus, 1);
  listener.said.put(std::string("is busy"));
  listener.said.end();
  CHECK(listener.hear() == "");
  CHECK_FALSE(statuses.answer_to(1, question));
  listener.control().header().lock.release();
  CHECK(listener.hear() == "");
  CHECK(statuses.answer_to(1, question) == "is busy");
}

TEST_CASE("frames: the first host's clock is asked for while a timeline is on, 10 times, and recorded") {
  const Environment environment{};
  Recorder recorder;
  Listener listener(kMe, &recorder);
  CHECK(listener.hear() == "");
  CHECK(listener.answers.empty());
  CHECK_FALSE(listener.notes_arrivals);
  REQUIRE(recorder.begin());
  int64_t sooner_ns = now_ns();  // than the next question, which is asked as soon as one is answered
  for (int64_t question = 1; question <= 10; ++question) {
    CHECK(listener.hear() == "");
    CHECK(listener.notes_arrivals);
    REQUIRE(listener.answers == std::vector<FrameType>{FrameType::kClockAsked});
    listener.answers.clear();
    CHECK(listener.hear() == "");
    CHECK(listener.answers.empty());  // one at a time
    const int64_t before_ns = now_ns();
    // Four times nobody knows when the answer came, then it came before it was read.
    listener.arrived_ns = question < 5 ? 0 : before_ns;
    const bool took_long = question == 10;
    listener.said.begin(FrameType::kClock, kPeer);
    listener.said.put(took_long ? int64_t{0} : int64_t{1000 + question});
    listener.said.put(int64_t{1000 + question} * (took_long ? 1'000'000 : 1));
    listener.said.end();
    wait_for([&] { return now_ns() > before_ns + 100'000; });
    const int64_t heard_ns = now_ns();
    CHECK(listener.hear() == "");
    Record record;
    REQUIRE(recorder.take(&record, 1) == 1);
    CHECK(record.type == RecordType::kClock);
    if (question < 5) CHECK(record.ended_ns >= heard_ns);
    if (question >= 5) CHECK(record.ended_ns == before_ns);
    if (took_long) {  // what there is between question and answer was for making the answer
      CHECK(record.called_ns >= record.ended_ns - (record.ended_ns - sooner_ns) / 5000 - 1);
      CHECK(record.called_ns <= record.ended_ns);
    } else {
      CHECK(record.started_ns == 1000 + question);
      CHECK(record.called_ns >= sooner_ns);
      CHECK(record.called_ns <= before_ns);
    }
    CHECK(record.peer == 15);
    CHECK(record.group == 7);
    sooner_ns = heard_ns;
  }
  CHECK(listener.hear() == "");
  CHECK(listener.answers.empty());
  recorder.end();
  CHECK(listener.hear() == "");
  CHECK_FALSE(listener.notes_arrivals);
}

TEST_CASE("frames: the first host's leader answers with its clock, and when the question came") {
  const Environment environment{};
  Recorder recorder;
  Listener listener(0, &recorder);
  for (const bool is_known : {false, true}) {
    CAPTURE(is_known);
    listener.answers.clear();
    const int64_t came_ns = now_ns();
    listener.arrived_ns = is_known ? came_ns : 0;
    wait_for([&] { return now_ns() > came_ns; });
    const int64_t before_ns = now_ns();
    listener.said.begin(FrameType::kClockAsked, kMe);
    listener.said.end();
    CHECK(listener.hear() == "");
    CHECK(listener.answers == std::vector<FrameType>{FrameType::kClock});
    if (is_known) CHECK(listener.clock_ns[0] == came_ns);
    if (!is_known) CHECK(listener.clock_ns[0] >= before_ns);
    CHECK(listener.clock_ns[1] >= before_ns);
    CHECK(listener.clock_ns[1] >= listener.clock_ns[0]);
    CHECK(listener.clock_ns[1] <= now_ns());
  }
}

TEST_CASE("frames: who asks for the clock again before there is an answer is told so") {
  const Environment environment{};
  Listener listener(0);
  for (int question = 0; question < 2; ++question) {
    listener.said.begin(FrameType::kClockAsked, kMe);
    listener.said.end();
  }
  CHECK(listener.hear().find("asks again before it has an answer") != std::string::npos);
}

TEST_CASE("frames: a host shows its ranks to the first, once a second") {
  const Environment environment{};
  Recorder recorder;
  Listener listener(kMe, &recorder);
  listener.takes = false;
  CHECK(listener.hear() == "");
  const int64_t shown_ns = now_ns();
  wait_for([&] { return now_ns() - shown_ns > 1'100'000'000; });
  CHECK(listener.hear() == "");  // nothing is added to what the link has not taken
  listener.takes = true;
  CHECK(listener.hear() == "");
  CHECK(listener.shown == std::vector<int>{2, 3});
  const int64_t told_ns = now_ns();
  wait_for([&] { return now_ns() - told_ns > 1'100'000'000; });
  CHECK(listener.hear() == "");  // nor before the first host has answered
  CHECK(listener.shown == std::vector<int>{2, 3});
  listener.said.begin(FrameType::kShownTaken, kPeer);
  listener.said.end();
  wait_for([&] { return listener.hear() == "" && listener.shown.size() >= 4; });
  CHECK(std::vector<int>(listener.shown.begin(), listener.shown.begin() + 4) == std::vector<int>{2, 3, 2, 3});

  Listener of_another_group(kMe);
  Listener of_first_host(0, &recorder);
  for (Listener* silent : {&of_another_group, &of_first_host}) {
    CHECK(silent->hear() == "");
    CHECK(silent->shown.empty());
  }
}

TEST_CASE("frames: the first host keeps what is shown of another host's rank") {
  const Environment environment{};
  Listener listener(0);
  CHECK(listener.control().rank_elsewhere(3).read()->told_ns == 0);
  ShownRank shown = {};
  shown.pid = 77;
  shown.stats[kStatsCount - 1] = 5;
  const int64_t before_ns = now_ns();
  listener.said.begin(FrameType::kShown, kMe + 1);
  listener.said.put(shown);
  for (const uint64_t figure : {11, 12, 13, 14}) listener.said.put(figure);  // bytes and time, of each host's link
  listener.said.end();
  CHECK(listener.hear() == "");
  const std::optional<RankElsewhere> kept = listener.control().rank_elsewhere(3).read();
  REQUIRE(kept);
  CHECK(kept->told_ns >= before_ns);
  CHECK(kept->shown.pid == 77);
  CHECK(kept->shown.stats[kStatsCount - 1] == 5);
  CHECK(listener.answers == std::vector<FrameType>{FrameType::kShownTaken});  // after the last rank of the host
  CHECK(listener.control().link_score(3, 0).nbytes == 11);
  CHECK(listener.control().link_score(3, 1).busy_ns == 14);
}

}  // namespace
}  // namespace rr::test
