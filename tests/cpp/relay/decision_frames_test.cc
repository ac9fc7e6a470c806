// Frames about operations that are decided, late or behind others, and a leader that leaves.

#include <chrono>
#include <thread>

#include "doctest/doctest.h"
#include "support/scripted_leader.h"

namespace rr::test {
namespace {

TEST_CASE("frames: a name that nobody has announced takes no room in the table") {
  const Environment environment{};
  Listener listener;
  say_entry(listener.said, kPeer, 1, kUsual, everybody(), {0}, "unheard of");
  CHECK(listener.hear() != "");
  CHECK(listener.control().header().names_used == 0);
}

// A decision says what ranks elsewhere have announced; what their leader had sent before comes later, and is over.

TEST_CASE("frames: requests that have been decided about meanwhile are dropped") {
  const Environment environment{};
  for (const bool is_named : {false, true}) {
    CAPTURE(is_named);
    Listener listener;
    bool log_full = false;
    Ticket ticket;
    for (const int r : {kMe, kMe + 1}) {
      ticket = is_named ? listener.rank(r).announce_named("name", long_sum(), nullptr, 0, true, log_full)
                        : listener.rank(r).announce_unnamed(0, long_sum(), nullptr, 0);
    }
    say_entry(listener.said, kPeer, 1, kUsual, everybody(), {0}, is_named ? "name" : "");
    if (!is_named) say_logged(listener, 1, long_sum(), 0);
    CHECK(listener.hear() == "");
    CHECK(listener.control().header().log_tail.load() == 1);
    CHECK(listener.rank(kMe).requests().is_appended(ticket));
    for (int r = 0; r < kSize; ++r) CHECK(listener.rank(kMe).requests().has_announced(ticket, r));
  }
}

TEST_CASE("frames: the first host is told of an operation once all ranks of a host have announced it or joined") {
  const Environment environment{};
  for (const bool joins : {false, true}) {
    CAPTURE(joins);
    Listener listener;
    listener.rank(kMe).announce_unnamed(0, long_sum(), nullptr, 0);
    CHECK(listener.hear() == "");
    CHECK(listener.answers.empty());
    if (joins) {
      listener.rank(kMe + 1).joins().join(0);
    } else {
      listener.rank(kMe + 1).announce_unnamed(0, long_sum(), nullptr, 0);
    }
    CHECK(listener.hear() == "");
    CHECK(std::count(listener.answers.begin(), listener.answers.end(), FrameType::kLogged) == 1);
  }
}

// Rank 1 completes an operation, and appends it, after the leader has read its ranks' notes. Then the leader sends the
// entry, and says that rank 0 waits in the operation.

TEST_CASE("frames: what the first host has sent as decided is not shown") {
  const Environment environment{};
  Listener listener(0);
  bool log_full = false;
  const Ticket ticket = listener.rank(0).announce_named("name", long_sum(), nullptr, 0, true, log_full);
  for (const int r : {kMe, kMe + 1}) say_logged(listener, r, long_sum(), 0, 1, "name");
  CHECK(listener.hear() == "");
  CHECK(listener.answers.empty());
  listener.rank(0).deadlock().block(ticket, 0);
  CHECK(listener.rank(1).announce_named("name", long_sum(), nullptr, 0, true, log_full).tag == ticket.tag);
  CHECK(listener.hear() == "");
  REQUIRE_FALSE(listener.answers.empty());
  CHECK(listener.answers.front() == FrameType::kEntry);
  listener.rank(1).deadlock().block(ticket, 0);  // the leader has read now that it has announced the operation
  CHECK(listener.hear() == "");
  CHECK(std::count(listener.answers.begin(), listener.answers.end(), FrameType::kLogged) == 0);
  CHECK(std::count(listener.answers.begin(), listener.answers.end(), FrameType::kBlocked) == 2);
}

// A rank of this host is between the number of its note and the note: what rank 1 says after it cannot be read yet.
// Rank 0 has appended the operation of both, and has waited for long.

TEST_CASE("frames: what the first host has sent as decided is not shown as late") {
  const Environment environment{};
  constexpr double kLateS = 0.02;
  Listener listener(0, nullptr, kLateS);
  bool log_full = false;
  const Ticket ticket = listener.rank(0).announce_named("name", long_sum(), nullptr, 0, true, log_full);
  for (const int r : {kMe, kMe + 1}) say_logged(listener, r, long_sum(), 0, 1, "name");
  CHECK(listener.hear() == "");
  listener.control().header().notes.fetch_add(1);
  CHECK(listener.rank(1).announce_named("name", long_sum(), nullptr, 0, true, log_full).tag == ticket.tag);
  REQUIRE(listener.rank(0).log().append(ticket));
  std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLateS));
  CHECK(listener.hear() == "");
  const auto entry = std::find(listener.answers.begin(), listener.answers.end(), FrameType::kEntry);
  REQUIRE(entry != listener.answers.end());
  CHECK(std::count(entry, listener.answers.end(), FrameType::kLogged) == 0);
}

TEST_CASE("frames: a failure is heard behind frames that wait") {
  const Environment environment{};
  Listener listener;
  FrameWriter& out = listener.said;
  out.begin(FrameType::kDrained, kPeer);
  out.end();
  say_request(listener, 1, small_sum(), 0);  // for the next epoch
  out.begin(FrameType::kFailed, kPeer);
  out.put(FatalKind::kPeerLost);
  out.put(std::string("lost rank 1"));
  out.end();
  CHECK(listener.hear() == "");
  CHECK(listener.control().head(0, 1).tag.load() == 0);
  CHECK(failure_text(listener.control()) == "lost rank 1");
}

TEST_CASE("frames: a leader that leaves a job which has failed does not wait for one that takes nothing more") {
  const Environment environment{};
  Listener listener;
  listener.takes = false;
  FrameWriter& out = listener.said;
  out.begin(FrameType::kFailed, kPeer);
  out.put(FatalKind::kPeerLost);
  out.put(std::string("lost rank 1"));
  out.end();
  CHECK(listener.hear() == "");
  listener.rank(kMe + 1).deadlock().block({}, 0);  // which is told to the other host
  CHECK_FALSE(listener.pass_on());
  listener.has_ended = true;
  CHECK(listener.pass_on());
}

}  // namespace
}  // namespace rr::test
