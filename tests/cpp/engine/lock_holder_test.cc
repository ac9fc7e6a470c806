// A rank that holds its group's lock for ever: its process was stopped there, or has ended. Who wants the lock says so.
#include <atomic>
#include <map>

#include "doctest/doctest.h"
#include "support/child.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// Rank 1 holds the group's lock and does not move: a process that was stopped there. On several hosts the lock is the
// one of rank 1's host, and only its leader wants it, for what rank 2 announces elsewhere.
TEST_CASE("timeout: a rank that was stopped with the lock held is named, and nobody else") {
  const Environment environment{};
  std::atomic<bool> is_held{false};
  const auto body = [&](Rank& rank) {
    barrier(rank.world);
    rank.context.set_timeout_s(2);  // on a busy machine another rank may show no sign of life for half a second
    const ControlSegment& control = rank.world.control();
    if (rank.rank == 1) {
      control.header().lock.acquire([] {});
      is_held.store(true);
      // Later than the other ranks' last look around; this rank's engine goes on looking, which is undone at once.
      const int64_t stopped_ns = now_ns() + 500000000;
      while (!has_failed(control)) control.line(1).seen_ns.store(stopped_ns, std::memory_order_relaxed);
      control.header().lock.release();
    } else {
      wait_for([&] { return is_held.load(); });
      const bool is_leader = rank.rank == 0 && rank.context.host_of(2) != 0;
      if (is_leader) wait_for([&] { return has_failed(control); });
      const std::string text = raised<TimeoutError>([&] { sum_now(rank, rank.world, 5000, 0, "name"); });
      if (rank.context.host_of(rank.rank) == 0) expect_contains(text, "] rank(s) 1 showed no sign of life");
    }
  };
  CHECK_NOTHROW(run_ranks(3, body));
  is_held.store(false);
  CHECK_NOTHROW(run_hosts({0, 0, 1}, body));
}

// Rank 1's process ends while it holds the group's lock. On several hosts only the leader wants the lock there, for
// what rank 2 announces elsewhere; it waits for it with the executor's lock held, and tells the other host.
TEST_CASE("a rank that has died with the lock held is named, and nobody hangs") {
  const Environment environment{};
  for (const std::vector<int>& host_of : {std::vector<int>{0, 0, 0}, {0, 0, 1}}) {
    CAPTURE(host_of.back());
    Child process;  // in place of rank 1's
    std::map<int, Fd> segments;
    for (const int host : {0, 1}) segments.emplace(host, create_memfd("test", ControlSegment::nbytes(3, 64)));
    LoopbackLinks loopback(8192);
    std::atomic<bool> is_held{false};
    CHECK_NOTHROW(run_threads(3, [&](int r) {
      const int host = host_of[static_cast<size_t>(r)];
      auto registry = std::make_shared<SegmentRegistry>();
      Network network;
      if (host_of.back() != 0) {
        network = {"loopback", host_of, [&, r](int peer, int channel) { return loopback.end(r, peer, channel); }, {}};
      }
      const std::vector<int> pidfds = {-1, r != 1 && host == 0 ? process.pidfd() : -1, -1};
      Context context(segments.at(host).get(), r, 3, pidfds, "host", registry, nullptr, tune, -1, network);
      Rank rank = {context, context.world(), r, 3, *registry};
      const ControlSegment& control = rank.world.control();
      barrier(rank.world);
      if (r == 1) {
        control.header().lock.acquire([] {});
        is_held.store(true);
        wait_for([&] { return has_failed(control); });
        control.header().lock.release();  // for this rank's own end, which a dead one has not got
        return;
      }
      wait_for([&] { return is_held.load(); });
      if (r == 0) process.end();
      const bool is_leader = r == 0 && host_of.back() != 0;
      if (is_leader) wait_for([&] { return has_failed(control); });
      expect_contains(raised<PeerLostError>([&] { sum_now(rank, rank.world, 5000, 0, "name"); }),
                      "lost rank 1: its process has ended without");
    }));
  }
}

}  // namespace
}  // namespace rr::test
