// Which ranks make the others wait again and again: the judgement on samples, and what the sampler counts.
#include "engine/late/late_ranks.h"
#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

constexpr int64_t kSampleNs = 50'000'000;

// Steps of a job: in each of them some ranks come so many samples later than the others.
class Steps {
 public:
  explicit Steps(size_t size) : late_(size, size, 0.1) {}

  // The words said meanwhile, each as the ranks that it is about.
  std::vector<std::vector<int>> run(int steps, const std::vector<std::pair<int, int>>& late_samples, int step_samples) {
    std::vector<std::vector<int>> words;
    for (int step = 0; step < steps; ++step) {
      ++operation_;
      for (int sample = 0; sample < step_samples; ++sample) {
        std::vector<LateRanks::Late> late;
        for (const auto& [rank, samples] : late_samples) {
          if (sample < samples) late.push_back({rank, operation_});
        }
        now_ += kSampleNs;
        late_.add(now_, kSampleNs, late);
        std::vector<int> told;
        for (const LateRanks::Found& found : late_.find(now_)) {
          told.push_back(found.rank);
          last = found;
        }
        if (!told.empty()) words.push_back(told);
      }
    }
    return words;
  }
  LateRanks::Found last;

 private:
  LateRanks late_;
  int64_t now_ = 1;
  uint64_t operation_ = 0;
};

using Words = std::vector<std::vector<int>>;

TEST_CASE("late ranks: one is told of within five steps, once, and again after it was in time") {
  Steps steps(4);
  CHECK(steps.run(5, {{1, 4}}, 6) == Words{{1}});
  CHECK(steps.last.share == doctest::Approx(4.0 / 6).epsilon(0.1));
  CHECK(steps.last.window_s == doctest::Approx(1.0).epsilon(0.3));
  CHECK(steps.last.operations >= 4);
  CHECK(steps.run(600, {{1, 4}}, 6).empty());  // 3 minutes
  CHECK(steps.run(300, {}, 6).empty());
  CHECK(steps.run(10, {{1, 4}}, 6) == Words{{1}});
}

TEST_CASE("late ranks: seconds in which ranks made ready do not count against what follows") {
  Steps steps(4);
  CHECK(steps.run(200, {}, 1).empty());  // 10 s
  CHECK(steps.run(6, {{1, 3}}, 4) == Words{{1}});
  CHECK(steps.last.window_s == doctest::Approx(2.0).epsilon(0.1));
  CHECK(steps.last.share >= 0.3);
}

TEST_CASE("late ranks: in little time a rank must be late for more of it") {
  Steps steps(4);
  CHECK(steps.run(200, {}, 1).empty());
  CHECK(steps.run(10, {{1, 1}}, 4).empty());  // a quarter of 2 s, 5 % of 10
}

TEST_CASE("late ranks: four slow steps among even ones make no late rank") {
  Steps steps(4);
  CHECK(steps.run(700, {}, 1).empty());  // 35 s
  CHECK(steps.run(4, {{1, 5}}, 5).empty());
  CHECK(steps.run(100, {}, 1).empty());
}

TEST_CASE("late ranks: words are a minute apart") {
  Steps steps(4);
  CHECK(steps.run(10, {{1, 4}}, 6) == Words{{1}});
  const int steps_to_a_minute = 200;
  CHECK(steps.run(steps_to_a_minute - 20, {{2, 4}}, 6).empty());
  CHECK(steps.run(40, {{2, 4}}, 6) == Words{{2}});
}

TEST_CASE("late ranks: two that are late alike are told of together") {
  Steps steps(4);
  CHECK(steps.run(10, {{1, 4}, {3, 3}}, 6) == Words{{1, 3}});
}

TEST_CASE("late ranks: nobody is late where many are") {
  CHECK(Steps(3).run(100, {{1, 4}, {2, 4}}, 6).empty());
  CHECK(Steps(4).run(100, {{0, 3}, {1, 4}, {2, 4}}, 6).empty());
  CHECK(Steps(4).run(100, {{1, 4}, {2, 2}, {3, 1}}, 6).empty());  // rank 3 half as much as rank 2
  CHECK(Steps(2).run(100, {{0, 2}, {1, 4}}, 6).empty());
}

TEST_CASE("late ranks: a little late is not late") {
  CHECK(Steps(4).run(300, {{1, 1}}, 14).empty());
  CHECK(Steps(4).run(300, {{1, 1}}, 8) == Words{{1}});
}

TEST_CASE("late ranks: a pause for one checkpoint, or for three, makes no late rank") {
  Steps steps(4);
  for (int pause = 0; pause < 3; ++pause) {
    CHECK(steps.run(1, {{0, 60}}, 60).empty());  // 3 s
    CHECK(steps.run(20, {}, 6).empty());
  }
}

TEST_CASE("late ranks: operations that have piled up behind a pause are no late ones") {
  Steps steps(4);
  CHECK(steps.run(1, {{1, 60}}, 60).empty());
  CHECK(steps.run(10, {{1, 1}}, 1).empty());
  CHECK(steps.run(20, {}, 6).empty());
}

TEST_CASE("late ranks: steps of many seconds") {
  Steps steps(4);
  CHECK(steps.run(6, {{1, 40}}, 100) == Words{{1}});  // 2 of 5 s
  CHECK(steps.last.share == doctest::Approx(0.4).epsilon(0.2));
}

TEST_CASE("late ranks: who is missed for the time of a message only is not late") {
  using Late = LateRanks::Late;
  const auto still_late = [](std::vector<Late> seen, const std::vector<Late>& later) {
    std::vector<int> ranks;
    for (const Late& one : LateRanks::still_late(std::move(seen), later)) ranks.push_back(one.rank);
    return ranks;
  };
  CHECK(still_late({{1, 7}, {2, 7}}, {{1, 7}}) == std::vector<int>{1});
  CHECK(still_late({{1, 7}}, {{1, 8}}).empty());  // in the next operation
  CHECK(still_late({{1, 7}}, {}).empty());
  CHECK(still_late({}, {{1, 7}}).empty());
}

TEST_CASE("late ranks: the sampler counts who waits, and for whom") {
  CHECK_NOTHROW(run_ranks(3, [](Rank& rank) {
    barrier(rank.world);
    const ControlSegment& control = rank.world.control();
    const auto late_ns = [&](int r) { return control.score(r).late_ns.load(); };
    if (rank.rank == 2) wait_for([&] { return late_ns(2) > 1'000'000'000; });
    barrier(rank.world);
    expect(control.score(0).waited_ns.load() > 100'000'000, "rank 0 waited");
    expect(control.score(1).waited_ns.load() > 100'000'000, "rank 1 waited");
    expect(control.score(2).waited_ns.load() < late_ns(2), "rank 2 did not");
    expect(late_ns(0) < late_ns(2) / 2 && late_ns(1) < late_ns(2) / 2, "nobody waited for them");
    expect(control.header().sampled_ns.load() >= late_ns(2), "all the time");
    sum_now(rank, rank.world, 3000, 1);
    barrier(rank.world);
  }));
}

TEST_CASE("late ranks: who waits for a rank that waits itself, waits for the last of the chain") {
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    barrier(rank.world);
    const ControlSegment& control = rank.world.control();
    std::shared_ptr<Group> set;
    if (rank.rank != 0) set = rank.context.add_group(fd.get(), {1, 2}, 1, nullptr);
    barrier(rank.world);
    const int64_t late_before = control.score(1).late_ns.load();
    // Rank 0 waits for rank 1, which waits for rank 2 in the set.
    if (rank.rank == 2) wait_for([&] { return control.score(2).late_ns.load() > 300'000'000; });
    if (rank.rank != 0) barrier(*set);
    barrier(rank.world);
    expect(control.score(1).late_ns.load() - late_before < control.score(2).late_ns.load() / 2, "rank 1 is not late");
  }));
}

TEST_CASE("late ranks: a thread that waits while the main thread of its program runs loses no time") {
  std::atomic<bool> is_over{false};
  std::exception_ptr error;
  std::thread job([&] {
    try {
      run_ranks(2, [](Rank& rank) {
        barrier(rank.world);
        const ControlSegment& control = rank.world.control();
        const int64_t begun_ns = control.header().sampled_ns.load();
        if (rank.rank == 1) wait_for([&] { return control.header().sampled_ns.load() - begun_ns > 1'000'000'000; });
        barrier(rank.world);
        expect(control.score(0).waited_ns.load() < 300'000'000, "rank 0 waited with a thread aside");
      });
    } catch (...) {
      error = std::current_exception();
    }
    is_over = true;
  });
  while (!is_over) continue;  // the main thread
  job.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace
}  // namespace rr::test
