// join(): the others go on without the ranks that have run out of data.
#include <atomic>
#include <string>
#include <thread>

#include "doctest/doctest.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

TEST_CASE("join: sums go on over those that are left; then all start afresh") {
  for (const char* algorithm : {"auto", "ring", "recursive_doubling"}) {
    CAPTURE(algorithm);
    const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
    CHECK_NOTHROW(run_ranks(4, [](Rank& rank) {
      for (int epoch = 0; epoch < 4; ++epoch) {
        // Rank r has 5 r steps in even epochs; in odd ones rank 0 has the most.
        const auto steps = [epoch](int r) { return epoch % 2 == 0 ? 5 * r : 5 * (3 - r); };
        for (int step = 0; step < steps(rank.rank); ++step) {
          int contributors = 0;
          for (int r = 0; r < rank.size; ++r) contributors += steps(r) > step ? r + 1 : 0;
          std::vector<Sum> sums;
          for (const size_t count : {size_t{1}, size_t{500}, size_t{5000}}) {
            sums.push_back(start_sum(rank, rank.world, count, step));
            sums.push_back(start_sum(rank, rank.world, count, step, "tensor " + std::to_string(count)));
          }
          for (const Sum& sum : sums) finish_sum(rank.world, sum, contributors);
        }
        const int last = rank.world.join(nullptr);
        expect(last >= 0 && last < rank.size, "a rank joined last");
        std::vector<float> agreed = {static_cast<float>(last)};
        Request request;
        request.kind = Kind::kAllreduce;
        request.op = ReduceOp::kMax;
        request.srcs = request.dsts = {view(agreed, DType::kFloat32)};
        rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
        expect(agreed[0] == static_cast<float>(last), "join() returns the same rank everywhere");
        sum_now(rank, rank.world, 4000, epoch);
      }
    }));
  }
}

TEST_CASE("join: what needs everybody fails on the ranks that called it, and only there") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(3, [](Rank& rank) {
    for (const size_t count : {size_t{2}, size_t{4000}}) {
      if (rank.rank != 1) {
        Floats data(count);
        for (const Kind kind : {Kind::kAllgather, Kind::kBroadcast}) {
          Request request;
          request.kind = kind;
          request.root = kind == Kind::kBroadcast ? 0 : -1;
          request.srcs = request.dsts = {view(data, DType::kFloat32)};
          const OperationPtr operation = rank.world.submit(request, nullptr);
          expect_contains(raised<MismatchError>([&] { rank.world.wait(*operation, -1, nullptr); }),
                          "is not supported with Join at this time");
        }
        finish_sum(rank.world, start_sum(rank, rank.world, count, 1), 1 + 3);
      }
      rank.world.join(nullptr);
      sum_now(rank, rank.world, count, 2);
    }
  }));
}

// What the other ranks would count or not, by the moment at which they look.
void expect_refused(Rank& rank, const std::string& why) {
  Floats data(4000, 1.0F);
  Request request;
  request.kind = Kind::kAllreduce;
  request.srcs = request.dsts = {view(data, DType::kFloat32)};
  const std::string name = "late";
  for (const std::string* named : {static_cast<const std::string*>(nullptr), &name}) {
    request.name = named;
    expect_contains(raised<InvalidArgumentError>([&] { rank.world.submit(request, nullptr); }), why);
  }
  Floats few(2, 1.0F);
  const TensorView small = view(few, DType::kFloat32);
  const Reduction sum{DType::kFloat32, ReduceOp::kSum, 1, 1, rank.size};
  expect_contains(raised<InvalidArgumentError>([&] { rank.world.allreduce_quick(small, small, sum, nullptr); }), why);
}

TEST_CASE("join: no thread of a rank that has joined states anything, and one thread joins") {
  const Environment environment{};
  std::atomic<bool> looked{false};
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    if (rank.rank == 0) {
      std::thread joins([&] { rank.world.join(nullptr); });
      wait_for([&] { return rank.world.is_joining(); });
      CHECK_NOTHROW(expect_refused(rank, "allreduce after join()"));
      CHECK_NOTHROW(expect_contains(raised<InvalidArgumentError>([&] { rank.world.join(nullptr); }), "another thread"));
      looked.store(true);
      joins.join();
    } else {
      finish_sum(rank.world, start_sum(rank, rank.world, 4000, 1), 2 + 3);
      wait_for([&] { return looked.load(); });
      rank.world.join(nullptr);
    }
    sum_now(rank, rank.world, 4000, 2);
  }));
}

TEST_CASE("join: one that was interrupted is taken up by the next, counts once, and holds nobody up") {
  const Environment environment{};
  std::atomic<bool> looked{false};
  std::atomic<int> through{0};
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    for (int epoch = 0; epoch < 2; ++epoch) {
      if (rank.rank == 1 && epoch == 0) {
        CHECK_THROWS_AS(rank.world.join(stop), Stop);
        CHECK_NOTHROW(expect_refused(rank, "That join() was interrupted"));
        looked.store(true);
        wait_for([&] { return through.load() == 2; });
      } else {
        finish_sum(rank.world, start_sum(rank, rank.world, 300, epoch), epoch == 0 ? 1 + 3 : 1 + 2 + 3);
        wait_for([&] { return looked.load(); });
        // More than the log holds: the rank that has joined has to skip them.
        for (int i = 0; epoch == 0 && i < 100; ++i)
          finish_sum(rank.world, start_sum(rank, rank.world, 70000, i), 1 + 3);
        through.fetch_add(1);
      }
      rank.world.join(nullptr);
      sum_now(rank, rank.world, 4000, epoch);
    }
  }));
}

TEST_CASE("join: one that is not called again after an interrupt ends the others' after the time of an operation") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "0.5"}};
  std::atomic<bool> was_interrupted{false};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    if (rank.rank == 1) {
      CHECK_THROWS_AS(rank.world.join(stop), Stop);
      was_interrupted = true;
      wait_for([&] { return has_failed(rank.world.control()); });
      return;
    }
    wait_for([&] { return was_interrupted.load(); });
    const std::string text = raised<TimeoutError>([&] { rank.world.join(nullptr); });
    expect_contains(text, "join() did not end within RINGREDUCE_TIMEOUT=0.5 s");
    expect_contains(text, "another rank's join() was interrupted and not called again");
  }));
}

}  // namespace
}  // namespace rr::test
