// The loops behind `ringreduce bench --level c`.
#include "measure/bench.h"

#include "doctest/doctest.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

// Rank r gives r + 1 everywhere.
BenchJob sum_in_place(Rank& rank, Floats& data) {
  data.assign(3000, static_cast<float>(rank.rank + 1));
  BenchJob job;
  job.src = job.dst = view(data, DType::kFloat32);
  job.reduction = {DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, rank.size};
  job.iters = 3;
  return job;
}

TEST_CASE("bench: rewriting gives each call the first input and a time of its own") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    Floats data;
    BenchJob job = sum_in_place(rank, data);
    job.rewrite = true;
    expect(bench(rank.world, job, nullptr).size() == 3, "a time for each call");
    expect(data.front() == 3 && data.back() == 3, "1 + 2, once");
  }));
}

TEST_CASE("bench: calls back to back go on with what the one before has left, and have one time") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    Floats data;
    const BenchJob job = sum_in_place(rank, data);
    expect(bench(rank.world, job, nullptr).size() == 1, "the mean");
    expect(data.front() == 12 && data.back() == 12, "(1 + 2) 2 2");
  }));
}

}  // namespace
}  // namespace rr::test
