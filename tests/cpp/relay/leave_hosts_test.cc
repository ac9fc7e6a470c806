// Ranks that leave a group on several hosts, leaders above all: what they have to pass on, and what ends without them.
#include <algorithm>
#include <chrono>
#include <thread>

#include "doctest/doctest.h"
#include "negotiation/segment/failure.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

TEST_CASE("a rank that leaves ends what needs it on the other hosts") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 1, 1}, [](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    if (rank.rank == 2) return;
    const std::string text = raised<ShutdownError>([&] { sum_now(rank, rank.world, 5000, 2); });
    expect_contains(text, "rank 2 called shutdown() or ended");
    expect_contains(text, "shm+" + rank.context.network_name());
  }));
}

TEST_CASE("a process set fails with the world where a member, which has left, never had it") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "60"}};
  const Fd of_rank_1 = create_memfd("group", ControlSegment::nbytes(2, 16));
  CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    if (rank.rank == 0) {  // it adds the process set when it sees a rank die
      record_failure(rank.world.control(), FatalKind::kPeerLost, "lost rank 7");
      raised<PeerLostError>([&] { sum_now(rank, rank.world, 1000, 2); });
      return;
    }
    const std::shared_ptr<Group> set = rank.context.add_group(of_rank_1.get(), {0, 1}, 1, nullptr);
    expect_contains(raised<PeerLostError>([&] { sum_now(rank, *set, 1000, 1); }), "lost rank 7");
  }));
}

TEST_CASE("a leader that leaves passes on what the ranks of its host state meanwhile") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 1) {
      wait_for([&] { return has_left(rank.world.control().line(0)); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a leader that waited for nobody would be gone
    }
    const OperationPtr last = start_barrier(rank.world, true);
    if (rank.rank == 0) return;
    rank.world.wait(*last, -1, nullptr);
  }));
}

TEST_CASE("what only a leader that has left could pass on ends the operations of all hosts") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_gone{false};
  CHECK_NOTHROW(run_hosts({0, 0, 1, 1}, [&](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    // Rank 0 has announced it, so that only the others are missed.
    const Sum sum = rank.rank == 0 || rank.rank == 2 ? start_sum(rank, rank.world, 5000, 2) : Sum{};
    if (rank.rank == 0) {
      rank.context.shutdown();
      is_gone = true;
      return;
    }
    if (rank.rank != 2) wait_for([&] { return is_gone.load(); });
    const std::string text = raised<ShutdownError>(
        [&] { finish_sum(rank.world, rank.rank == 2 ? sum : start_sum(rank, rank.world, 5000, 2)); });
    expect_contains(text, "rank 0 called shutdown() or ended");
  }));
}

TEST_CASE("what the first host has not put in order before its leader left ends the operations of the others") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_gone{false};
  CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    if (rank.rank == 1) wait_for([&] { return is_gone.load(); });
    const Sum sum = start_sum(rank, rank.world, 50000, 2);
    if (rank.rank == 0) {
      rank.context.shutdown();
      is_gone = true;
      return;
    }
    const std::string text = raised<ShutdownError>([&] { finish_sum(rank.world, sum); });
    expect_contains(text, "rank 0 called shutdown() or ended");
  }));
}

TEST_CASE("a rank whose leader has left waits for no name that only the leader could free") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_gone{false};
  CHECK_NOTHROW(run_hosts(
      {0, 0, 1},
      [&](Rank& rank) {
        std::vector<Sum> sums;
        for (int k = 0; k < 16; ++k) sums.push_back(start_sum(rank, rank.world, 2, k, "name " + std::to_string(k)));
        if (rank.rank == 1) wait_for([&] { return is_gone.load(); });
        for (const Sum& sum : sums) finish_sum(rank.world, sum);
        if (rank.rank == 0) {
          rank.context.shutdown();
          is_gone = true;
        }
        if (rank.rank != 1) return;
        const std::string text = raised<ShutdownError>([&] { sum_now(rank, rank.world, 2, 1, "one more"); });
        expect_contains(text, "rank 0 called shutdown() or ended");
      },
      16));
}

TEST_CASE("a leader leaves all its groups before it waits for the other leaders, and waits once") {
  constexpr int kGroups = 30;      // waiting for each in turn would take 1 s and more a group
  constexpr double kSoonS = 20.0;  // twenty times the limit of one wait
  const std::vector<int> host_of = {0, 0, 1};
  std::vector<Fd> segments;
  for (int i = 0; i < 2 * kGroups; ++i) segments.push_back(create_memfd("group", ControlSegment::nbytes(3, 16)));
  const Environment environment{};
  std::atomic<bool> is_gone{false};
  CHECK_NOTHROW(run_hosts(
      host_of,
      [&](Rank& rank) {
        std::vector<Group*> groups = {&rank.world};
        for (int id = 1; id <= kGroups; ++id) {
          const int fd = segments[static_cast<size_t>(2 * (id - 1) + host_of[static_cast<size_t>(rank.rank)])].get();
          groups.push_back(rank.context.add_group(fd, {0, 1, 2}, id, nullptr).get());
        }
        barrier(rank.world);
        if (rank.rank == 0) {
          const int64_t begin = now_ns();
          rank.context.shutdown();
          is_gone = true;
          expect(static_cast<double>(now_ns() - begin) < kSoonS * 1e9, "one wait for all groups");
          return;
        }
        if (rank.rank == 1) {  // sees what rank 0 writes in the order in which it writes it
          wait_for([&] {
            return std::any_of(groups.begin(), groups.end(),
                               [](Group* one) { return has_closed(one->control().line(0)); });
          });
          for (Group* one : groups) expect(has_left(one->control().line(0)), "left before any group is closed");
        }
        wait_for([&] { return is_gone.load(); });
        for (Group* one : groups) {
          const std::string text = raised<ShutdownError>([&] { sum_now(rank, *one, 5000, 1); });
          expect_contains(text, "rank 0 called shutdown() or ended");
        }
      },
      16));
}

// Its making failed there, say; the leader of its host has passed on nothing about this group.
TEST_CASE("leaving: a member that never had the group has left it when it has left the world") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "60"}};
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1, 1}, {0, 0}}) {
    CAPTURE(host_of.size());
    const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
    CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
      if (rank.rank == 1 && host_of[0] == host_of[1])
        ControlSegment::map(fd.get(), 2).line(1).attendance.store(Attendance::kPresent);  // as far as it has come
      barrier(rank.world);
      if (rank.rank != 0) return;
      Group& set = *rank.context.add_group(fd.get(), {0, 1}, 1, nullptr);
      expect_contains(raised<ShutdownError>([&] { sum_now(rank, set, 2, 0); }), "rank 1 called shutdown() or ended");
    }));
  }
}

TEST_CASE("leaving: a group whose removal is interrupted has failed, so that no member waits for a second call") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "60"}};
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1, 1}, {0, 0, 0}}) {
    std::vector<Fd> segments;
    for (int host = 0; host < 2; ++host) segments.push_back(create_memfd("set", ControlSegment::nbytes(3, 64)));
    CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
      const int fd = segments[static_cast<size_t>(host_of[static_cast<size_t>(rank.rank)])].get();
      Group& set = *rank.context.add_group(fd, {0, 1, 2}, 1, nullptr);
      sum_now(rank, set, 2, 0);
      if (rank.rank == 0) {
        bool is_stopped = false;
        try {
          rank.context.remove_group(&set, stop);
        } catch (const Stop&) {
          is_stopped = true;
        }
        expect(is_stopped, "the removal is interrupted");
      }
      if (rank.rank == 1) wait_for([&] { return has_failed(set.control()); });
      rank.context.remove_group(&set, nullptr);  // of a failed group: without the others
      sum_now(rank, rank.world, 2, 0);
    }));
  }
}

}  // namespace
}  // namespace rr::test
