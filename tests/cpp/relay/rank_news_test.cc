// In which order the other hosts hear of what the ranks of one host do, step by step and on one thread.
#include <memory>
#include <utility>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "negotiation/segment/failure.h"
#include "support/scripted_leader.h"

namespace rr::test {
namespace {

using Told = std::vector<std::pair<FrameType, int>>;

Told told(Listener& listener) {
  CHECK(listener.hear().empty());
  Told all;
  for (size_t i = 0; i < listener.answers.size(); ++i) all.emplace_back(listener.answers[i], listener.answers_of[i]);
  listener.answers.clear();
  listener.answers_of.clear();
  return all;
}

void announce(Listener& listener, int rank, const std::string& name) {
  bool log_full = false;
  REQUIRE(listener.rank(rank).announce_named(name, small_sum(), nullptr, 0, false, log_full).tag != 0);
}

// Its rank 2 has announced an operation, and the leader waits for what rank 3 will announce. A leader that was off its
// core for as long as it would wait has sent what it had: then the test begins again with another one.
std::unique_ptr<Listener> patient_listener() {
  constexpr int64_t kPatienceNs = 500'000;  // LeaderLinks'
  for (int turn = 0; turn < 1000; ++turn) {
    auto listener = std::make_unique<Listener>();
    const int64_t begin_ns = now_ns();
    announce(*listener, 2, "a");
    REQUIRE_FALSE(listener->relay().is_patient());
    listener->hear_once();
    if (listener->relay().is_patient()) return listener;
    REQUIRE(now_ns() - begin_ns >= kPatienceNs);
  }
  FAIL("each of 1000 leaders was off its core for 0.5 ms");
  return nullptr;
}

TEST_CASE("news: other hosts hear of what ranks of a host do in the order in which they did it") {
  Listener listener;
  announce(listener, 3, "a");
  listener.rank(2).announce_unnamed(0, small_sum(), nullptr, 0);
  listener.rank(3).joins().join(0);
  announce(listener, 2, "a");
  listener.rank(2).announce_unnamed(1, small_sum(), nullptr, 0);
  CHECK(told(listener) == Told{{FrameType::kNamed, 3},
                               {FrameType::kUnnamed, 2},
                               {FrameType::kJoined, 3},
                               {FrameType::kNamed, 2},
                               {FrameType::kUnnamed, 2}});
}

TEST_CASE("news: what the ranks of a host announce of one short operation goes out as one, or after a while alone") {
  const std::unique_ptr<Listener> patient = patient_listener();
  Listener& listener = *patient;
  CHECK(listener.pushes == 0);
  announce(listener, 3, "a");
  listener.hear_once();
  CHECK(listener.pushes == 1);
  CHECK(told(listener) == Told{{FrameType::kNamed, 2}, {FrameType::kNamed, 3}});
  announce(listener, 3, "b");
  CHECK(told(listener) == Told{{FrameType::kNamed, 3}});
  // What is urgent does not wait with it, and keeps the order.
  listener.rank(2).announce_unnamed(0, small_sum(), nullptr, 0);
  listener.rank(2).joins().join(1);
  listener.hear_once();
  CHECK(listener.answers.size() == 2);
  CHECK(told(listener) == Told{{FrameType::kUnnamed, 2}, {FrameType::kJoined, 2}});
}

TEST_CASE("news: only what the ranks of a host will announce can wait for it") {
  const std::unique_ptr<Listener> patient = patient_listener();
  Listener& listener = *patient;
  listener.control().header().notes.fetch_add(1);  // rank 3 is about to leave a note, and rings nobody when it does
  listener.hear_once();
  CHECK(listener.relay().has_backlog());
  CHECK_FALSE(listener.relay().is_patient());
}

TEST_CASE("news: a host awaits others for as long as a short operation misses them") {
  Listener listener;
  CHECK_FALSE(listener.relay().awaits_others());
  const Ticket unnamed = listener.rank(2).announce_unnamed(0, small_sum(), nullptr, 0);
  listener.rank(2).announce_unnamed(1, small_sum(), nullptr, 0);
  told(listener);
  CHECK_FALSE(listener.relay().awaits_others());  // one of its own comes first
  listener.rank(3).announce_unnamed(0, small_sum(), nullptr, 0);
  told(listener);
  CHECK(listener.relay().awaits_others());
  const ControlSegment& control = listener.control();
  const auto announce_elsewhere = [&](Ticket ticket) {
    for (const int r : {0, 1}) control.head(ticket.request_slot, r).tag = ticket.tag;
  };
  announce_elsewhere(unnamed);
  CHECK_FALSE(listener.relay().awaits_others());
  bool log_full = false;
  const Ticket named = listener.rank(2).announce_named("a", small_sum(), nullptr, 0, false, log_full);
  told(listener);
  CHECK_FALSE(listener.relay().awaits_others());
  announce(listener, 3, "a");
  told(listener);
  CHECK(listener.relay().awaits_others());
  announce_elsewhere(named);
  CHECK_FALSE(listener.relay().awaits_others());
  listener.rank(3).announce_unnamed(1, small_sum(), nullptr, 0);
  told(listener);
  CHECK(listener.relay().awaits_others());
  for (const int r : {2, 3}) control.head(1, r).tag = 0;  // a verdict has withdrawn it
  CHECK_FALSE(listener.relay().awaits_others());
}

TEST_CASE("news: what comes after a note that a rank is about to leave waits for it") {
  Listener listener;
  const ControlSegment& control = listener.control();
  const uint64_t number = control.header().notes.fetch_add(1);  // rank 3 is about to announce
  announce(listener, 2, "a");
  control.line(2).attendance = Attendance::kShutDown;
  CHECK(told(listener).empty());
  Signature& announced = control.signature(0, 3);
  announced = small_sum();
  control.head(0, 3).digest = digest(announced);
  control.head(0, 3).tag = Ticket::unnamed(0).tag;
  control.note(3, 0) = {0, Ticket::unnamed(0).tag, number};
  CHECK(told(listener).empty());
  control.outbox(3).written = 1;
  CHECK(told(listener) == Told{{FrameType::kUnnamed, 3}, {FrameType::kNamed, 2}, {FrameType::kLeft, 2}});
}

TEST_CASE("news: that the group has failed is told before that a rank which has raised it left") {
  Listener listener;
  const ControlSegment& control = listener.control();
  record_failure(control, FatalKind::kPeerLost, "lost rank 7");
  control.line(3).attendance = Attendance::kShutDown;
  CHECK(told(listener) == Told{{FrameType::kFailed, 2}, {FrameType::kLeft, 3}});
}

TEST_CASE("news: the others are not told that a rank has not attached yet") {
  Listener listener;
  listener.control().line(3).attendance = Attendance::kAbsent;
  announce(listener, 2, "a");
  CHECK(told(listener) == Told{{FrameType::kNamed, 2}});
  listener.control().line(3).attendance = Attendance::kPresent;
  CHECK(told(listener).empty());
  listener.control().line(3).attendance = Attendance::kShutDown;
  CHECK(told(listener) == Told{{FrameType::kLeft, 3}});
}

}  // namespace
}  // namespace rr::test
