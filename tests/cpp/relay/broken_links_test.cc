// The link between the leaders of two hosts breaks, and every other connection stays: all hosts hear of it.
#include "doctest/doctest.h"
#include "support/breakable_link.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// Four hosts of one rank. The links that carry control between ranks 0 and 1 break when is_broken says so.
void run_breakable(const std::atomic<bool>& is_broken, const std::function<void(Rank&)>& body) {
  const Wrap wrap = [&](std::unique_ptr<Link> end, int rank, int peer, int channel) -> std::unique_ptr<Link> {
    if (!carries_control(channel) || rank > 1 || peer > 1) return end;
    return std::make_unique<BreakableLink>(std::move(end), is_broken);
  };
  run_hosts({0, 1, 2, 3}, body, 64, 8192, nullptr, wrap);
}

// All links have been used, and nobody needs any of them to return.
void meet(const Rank& rank, std::atomic<int>& met) {
  barrier(rank.world);
  ++met;
  wait_for([&] { return met.load() == 4; });
}

TEST_CASE("a failure of one link between leaders is heard on the hosts that it does not connect") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_broken{false};
  std::atomic<int> met{0}, told{0};
  CHECK_NOTHROW(run_breakable(is_broken, [&](Rank& rank) {
    meet(rank, met);
    if (rank.rank == 0) is_broken = true;
    // Rank 2 waits in a short operation of its own: what the hosts make of one that they call differently is no answer.
    const std::string text = raised<PeerLostError>(
        [&] { rank.rank == 2 ? sum_now(rank, rank.world, 3, 1, "of rank 2") : sum_now(rank, rank.world, 5000, 1); });
    expect_contains(text, "the test has broken this link");
    ++told;
    wait_for([&] { return told.load() == 4; });  // no rank leaves before
  }));
}

TEST_CASE("that a leader leaves is heard by the hosts to which its links work") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_broken{false};
  std::atomic<int> met{0}, told{0};
  CHECK_NOTHROW(run_breakable(is_broken, [&](Rank& rank) {
    meet(rank, met);
    if (rank.rank == 1) {
      wait_for([&] { return told.load() == 2; });
      return;
    }
    if (rank.rank == 0) {
      is_broken = true;
      rank.context.shutdown();
      wait_for([&] { return told.load() == 2; });
      return;
    }
    wait_for([&] { return is_broken.load(); });
    try {
      sum_now(rank, rank.world, 5000, 1);
    } catch (const ShutdownError&) {
      ++told;
    } catch (const PeerLostError&) {  // rank 0 or 1 has found the link broken before rank 0 left
      ++told;
    }
  }));
}

}  // namespace
}  // namespace rr::test
