// Random interleavings on one host. RR_TEST_ROUNDS=N sets the number of rounds: 17000 make about a million operations.
// RR_TEST_SEED=N draws others.
#include "support/stress.h"

#include "doctest/doctest.h"

namespace rr::test {
namespace {

TEST_CASE("random operations, kinds, sizes, names and orders, on overlapping groups, with mismatches and joins") {
  const Environment environment{{"RINGREDUCE_FUSION_THRESHOLD", "30000"}, {"RINGREDUCE_FUSION_LINGER_US", "200"}};
  for (const int size : {3, 2, 5}) {
    Stress stress;
    stress.host_of.assign(static_cast<size_t>(size), 0);
    stress.rounds = rounds(size == 3 ? 600 : 1000 / (size * size));
    stress.seed = seed(static_cast<unsigned>(size));
    CAPTURE(stress.seed);
    size_t operations = 0;
    CHECK_NOTHROW(operations = StressRun(stress).run());
    MESSAGE(size << " ranks: " << operations << " random operations");
  }
}

TEST_CASE("two overlapping groups in opposite orders: no deadlock, asynchronous or by names") {
  const Environment environment{};
  const Fd fd = create_memfd("pair", ControlSegment::nbytes(2, 64));
  const int turns = rounds(2000);
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    Group* pair = rank.rank < 2 ? rank.context.add_group(fd.get(), {0, 1}, 1, nullptr).get() : nullptr;
    for (int turn = 0; turn < turns; ++turn) {
      const size_t count = turn % 2 == 0 ? 3 : 2500;
      std::vector<std::pair<Group*, Sum>> sums;
      for (int i = 0; i < 2; ++i) {
        Group* group = (i + rank.rank) % 2 == 0 ? &rank.world : pair;
        if (group != nullptr) sums.emplace_back(group, start_sum(rank, *group, count, turn));
      }
      if (rank.rank == 0) std::reverse(sums.begin(), sums.end());
      for (const auto& [group, sum] : sums) finish_sum(*group, sum);
    }
    barrier(rank.world);
    if (pair != nullptr) rank.context.remove_group(pair, nullptr);
    barrier(rank.world);
  }));
}

TEST_CASE("several threads of a rank, each with names of its own, one with the unnamed operations") {
  const Environment environment{};
  const int turns = rounds(500);
  CHECK_NOTHROW(run_ranks(2, [turns](Rank& rank) {
    std::vector<std::exception_ptr> errors(3);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (int turn = 0; turn < turns; ++turn) {
            const std::string name = t == 0 ? "" : std::to_string(t) + "." + std::to_string(turn % 5);
            sum_now(rank, rank.world, turn % 3 == 0 ? 3000 : 5, turn, name);
          }
        } catch (...) {
          errors[static_cast<size_t>(t)] = std::current_exception();
          rank.context.shutdown();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    barrier(rank.world);
  }));
}

}  // namespace
}  // namespace rr::test
