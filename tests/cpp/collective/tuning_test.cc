// The sizes that depend on the machine: from a plan, from a variable, or measured; the same on all ranks of a host, and
// changed together. They never show in a result.
#include "measure/tuning.h"
#include "doctest/doctest.h"
#include "negotiation/segment/failure.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

constexpr size_t kKiB = 1024;

// On each rank of one host: a context with a plan of its own.
void run_planned(const std::vector<TuningPlan>& plans, const std::function<void(Context&)>& body) {
  const int size = static_cast<int>(plans.size());
  const Fd fd = create_memfd("test", ControlSegment::nbytes(size, 64));
  run_threads(size, [&](int r) {
    Context context(fd.get(), r, size, std::vector<int>(static_cast<size_t>(size), -1), "host",
                    std::make_shared<SegmentRegistry>(), nullptr, tune, -1, {}, {}, plans[static_cast<size_t>(r)]);
    body(context);
  });
}

void expect_sizes(Context& context, size_t chunk_nbytes, size_t eager_nbytes) {
  const TunedSizes now = sizes(context.world());
  expect(now.chunk_nbytes == chunk_nbytes, std::to_string(now.chunk_nbytes));
  expect(now.eager_nbytes == eager_nbytes, std::to_string(now.eager_nbytes));
}

TEST_CASE("tuning: a plan's sizes are in force, and are not measured anew") {
  const Environment environment = {{"RINGREDUCE_CHUNK", "0"}};
  const TuningPlan plan = {7, 96 * kKiB, 3 * kKiB};
  CHECK_NOTHROW(run_planned({plan, plan}, [](Context& context) {
    expect_sizes(context, 96 * kKiB, 3 * kKiB);
    expect(context.stats().operations.load() == 0, "no operation before the first one");
  }));
}

TEST_CASE(
    "tuning: RINGREDUCE_CHUNK goes before a plan, which leaves the eager limit to the default where it has none") {
  const Environment environment = {{"RINGREDUCE_CHUNK", "65536"}};
  const TuningPlan plan = {7, 96 * kKiB, 0};
  CHECK_NOTHROW(run_planned({plan, plan}, [](Context& context) { expect_sizes(context, 64 * kKiB, 8 * kKiB); }));
}

// What is eager folds in rank order, and the ring folds in another one.
TEST_CASE("tuning: with a forced ring or tree the eager limit is the default, whatever was measured or planned") {
  const TuningPlan plan = {7, 96 * kKiB, 3 * kKiB};
  const std::vector<TuningPlan> none(32);  // so many ranks that they outnumber the cores of most machines
  const auto expect_usual = [](Context& context) { expect(sizes(context.world()).eager_nbytes == 8 * kKiB, "8 KiB"); };
  for (const std::string algorithm : {"ring", "recursive_doubling", "tree"}) {
    const Environment environment = {{"RINGREDUCE_CHUNK", "0"}, {"RINGREDUCE_ALGORITHM", algorithm}};
    CHECK_NOTHROW(run_planned({plan, plan}, [](Context& context) { expect_sizes(context, 96 * kKiB, 8 * kKiB); }));
    CHECK_NOTHROW(run_planned(none, expect_usual));
  }
  const Environment environment = {{"RINGREDUCE_CHUNK", "0"}, {"RINGREDUCE_ALGORITHM", "two_shot"}};
  CHECK_NOTHROW(run_planned({plan, plan}, [](Context& context) { expect_sizes(context, 96 * kKiB, 3 * kKiB); }));
}

TEST_CASE("tuning: ranks with different plans, or one without, are told so, each of them") {
  const TuningPlan one = {0xabc, 96 * kKiB, 3 * kKiB};
  const TuningPlan other = {0xdef, 96 * kKiB, 3 * kKiB};
  for (const TuningPlan& third : {other, TuningPlan()}) {
    std::atomic<int> refused{0};
    run_threads(3, [&, fd = std::make_shared<Fd>(create_memfd("test", ControlSegment::nbytes(3, 64)))](int r) {
      try {
        Context context(fd->get(), r, 3, {-1, -1, -1}, "host", std::make_shared<SegmentRegistry>(), nullptr, tune, -1,
                        {}, {}, r == 2 ? third : one);
      } catch (const MismatchError& error) {
        expect_contains(error.what(), "with plan 0000000000000abc on rank 0");
        expect_contains(error.what(),
                        third.hash != 0 ? "with plan 0000000000000def on rank 2" : "without a plan on rank 2");
        ++refused;
      }
    });
    CHECK(refused == 3);
  }
}

// Rank 0 chooses for both, by `choose`. What rank 1's start ends with.
template <class E>
std::string second_rank_told(Context::Tune choose) {
  const Fd fd = create_memfd("test", ControlSegment::nbytes(2, 64));
  std::string told;
  std::atomic<bool> is_over{false};
  run_threads(2, [&](int r) {
    try {
      const auto start = [&] {
        Context(fd.get(), r, 2, {-1, -1}, "host", std::make_shared<SegmentRegistry>(), nullptr, r == 0 ? choose : tune);
      };
      if (r == 1) {
        told = raised<E>(start);
      } else {
        raised<std::exception>(start);
        wait_for([&] { return is_over.load(); });
      }
    } catch (...) {
      is_over = true;
      throw;
    }
    is_over = true;
  });
  return told;
}

TEST_CASE("tuning: a rank whose start fails says so to those that wait for its choice") {
  const Environment environment = {{"RINGREDUCE_TIMEOUT", "20"}, {"RINGREDUCE_INIT_TIMEOUT", "20"}};
  const auto told = second_rank_told<PeerLostError>([](Context&) { throw std::runtime_error("there is no room"); });
  CHECK_NOTHROW(expect_contains(told, "lost rank 0: init() failed there: there is no room"));
}

TEST_CASE("tuning: who waits too long for the choice gets an error that names the rank") {
  const Environment environment = {{"RINGREDUCE_TIMEOUT", "0.1"}, {"RINGREDUCE_INIT_TIMEOUT", "3"}};
  const auto told = second_rank_told<TimeoutError>([](Context& context) {
    wait_for([&] { return has_failed(context.world().control()); });
    context.world().throw_if_failed();
  });
  CHECK_NOTHROW(
      expect_contains(told, "rank 1: rank 0, which chooses the chunk's size for this host, did not do so within 3"));
}

TEST_CASE("tuning: a rank that has no plan that it can use is named on all of them") {
  const Fd fd = create_memfd("test", ControlSegment::nbytes(3, 64));
  std::atomic<int> refused{0};
  run_threads(3, [&](int r) {
    TuningPlan plan = {0xabc, 96 * kKiB, 3 * kKiB};
    if (r == 1) plan.hash = TuningPlan::kUnusable;
    try {
      Context context(fd.get(), r, 3, {-1, -1, -1}, "host", std::make_shared<SegmentRegistry>(), nullptr, tune, -1, {},
                      {}, plan);
    } catch (const MismatchError& error) {
      expect_contains(error.what(), "rank 1 has no plan that it can use");
      ++refused;
    }
  });
  CHECK(refused == 3);
}

TEST_CASE("tuning: sizes change between operations, on all ranks, and sums stay what they are") {
  CHECK_NOTHROW(run_ranks(3, [](Rank& rank) {
    std::vector<float> first;
    for (const TunedSizes& wanted :
         {TunedSizes{4096, 0}, TunedSizes{64 * kKiB, 64}, TunedSizes{1024 * kKiB, 16 * kKiB}}) {
      set_sizes(rank.world, wanted, nullptr);
      expect_sizes(rank.context, wanted.chunk_nbytes, wanted.eager_nbytes);
      std::vector<float> all;
      for (const size_t count : {1, 700, 4000, 300001}) {
        Floats data(count);
        for (size_t i = 0; i < count; ++i) {
          data[i] = 1.0f / static_cast<float>(3 + (i * 7 + static_cast<size_t>(rank.rank) * 11) % 1009);
        }
        Request request;
        request.srcs = request.dsts = {view(data, DType::kFloat32)};
        request.kind = Kind::kAllreduce;
        rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
        all.insert(all.end(), data.begin(), data.end());
      }
      if (first.empty()) first = all;
      expect(std::memcmp(first.data(), all.data(), all.size() * sizeof(float)) == 0, "the same bits");
    }
  }));
}

TEST_CASE("tuning: sizes that cannot be are refused on every rank, and change nothing") {
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    const TunedSizes before = sizes(rank.world);
    for (const TunedSizes& wrong : {TunedSizes{4032, 0}, TunedSizes{kSlotLargest + 64, 0}, TunedSizes{4100, 0},
                                    TunedSizes{4096, kEagerNbytes + 1}}) {
      CHECK_THROWS_AS(set_sizes(rank.world, wrong, nullptr), InvalidArgumentError);
    }
    expect_sizes(rank.context, before.chunk_nbytes, before.eager_nbytes);
    barrier(rank.world);
  }));
}

}  // namespace
}  // namespace rr::test
