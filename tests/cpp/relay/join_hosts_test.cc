// join() on several hosts: the others go on without the ranks that have run out of data, whichever host they are on.
#include <random>

#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

using Halves = std::vector<uint16_t>;

// Whole numbers from 0 to 2047, which float16 has exactly.
uint16_t half_of(unsigned value) {
  if (value == 0) return 0;
  unsigned exponent = 25;
  while (value < 1024) {
    value *= 2;
    --exponent;
  }
  return static_cast<uint16_t>(exponent << 10 | (value & 1023));
}

struct HalfSum {
  std::shared_ptr<Halves> data;
  OperationPtr operation;
};

HalfSum start_half_sum(Rank& rank, size_t count, int base) {
  HalfSum sum = {std::make_shared<Halves>(count), nullptr};
  for (size_t i = 0; i < count; ++i) {
    (*sum.data)[i] = half_of(static_cast<unsigned>(rank.rank + 1) * (static_cast<unsigned>(base) + i % 5));
  }
  Request request;
  request.kind = Kind::kAllreduce;
  request.srcs = request.dsts = {view(*sum.data, DType::kFloat16)};
  request.keep = sum.data;
  sum.operation = rank.world.submit(request, nullptr);
  return sum;
}

void finish_half_sum(Group& group, const HalfSum& sum, int base, int contributors) {
  group.wait(*sum.operation, -1, nullptr);
  for (size_t i = 0; i < sum.data->size(); ++i) {
    const unsigned wanted = static_cast<unsigned>(contributors) * (static_cast<unsigned>(base) + i % 5);
    expect((*sum.data)[i] == half_of(wanted), [&] { return "element " + std::to_string(i) + " of a float16 sum"; });
  }
}

// A group of two tensors of unlike dtype in one operation.
void sum_grouped(Rank& rank, size_t count, int base, int contributors) {
  Floats floats(count);
  std::vector<int64_t> integers(count + 3);
  const auto floats_wanted = [&](size_t i) { return static_cast<float>(base) + static_cast<float>(i % 13); };
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(rank.rank + 1) * floats_wanted(i);
  for (size_t i = 0; i < integers.size(); ++i) {
    integers[i] = (rank.rank + 1) * (base + static_cast<int64_t>(i));
  }
  Request request;
  request.kind = Kind::kAllreduce;
  request.srcs = request.dsts = {view(floats, DType::kFloat32), view(integers, DType::kInt64)};
  rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
  for (size_t i = 0; i < floats.size(); ++i) {
    expect(floats[i] == static_cast<float>(contributors) * floats_wanted(i), "a float of a grouped sum");
  }
  for (size_t i = 0; i < integers.size(); ++i) {
    expect(integers[i] == contributors * (base + static_cast<int64_t>(i)), "an integer of a grouped sum");
  }
}

// Every rank has been told the same; returns it.
int join_together(Rank& rank) {
  const int last = rank.world.join(nullptr);
  std::vector<int64_t> most = {last}, least = {last};
  for (auto* values : {&most, &least}) {
    Request request;
    request.kind = Kind::kAllreduce;
    request.op = values == &most ? ReduceOp::kMax : ReduceOp::kMin;
    request.srcs = request.dsts = {view(*values, DType::kInt64)};
    rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
  }
  expect(most[0] == last && least[0] == last, "join() returns the same rank everywhere");
  return last;
}

TEST_CASE("join: sums go on over those that are left, on any hosts; then all start afresh") {
  for (const char* algorithm : {"auto", "ring", "recursive_doubling"}) {
    for (const auto& host_of : kLayouts) {
      CAPTURE(algorithm);
      CAPTURE(host_of.size());
      const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
      CHECK_NOTHROW(run_hosts(host_of, [](Rank& rank) {
        for (int epoch = 0; epoch < 4; ++epoch) {
          // The first ranks stop first, or the last; so whole hosts do, the first one's leader among them or not.
          const auto steps = [&](int r) { return 3 * (epoch % 2 == 0 ? r : rank.size - 1 - r); };
          for (int step = 0; step < steps(rank.rank); ++step) {
            int contributors = 0;
            for (int r = 0; r < rank.size; ++r) contributors += steps(r) > step ? r + 1 : 0;
            std::vector<Sum> sums;
            for (const size_t count : {size_t{1}, size_t{500}, size_t{5000}}) {
              sums.push_back(start_sum(rank, rank.world, count, step));
              sums.push_back(start_sum(rank, rank.world, count, step, "tensor " + std::to_string(count)));
            }
            const HalfSum half = start_half_sum(rank, 3000, step);
            for (const Sum& sum : sums) finish_sum(rank.world, sum, contributors);
            finish_half_sum(rank.world, half, step, contributors);
            sum_grouped(rank, 700, step, contributors);
          }
          const int last = join_together(rank);
          expect(last >= 0 && last < rank.size, "a rank joined last");
          sum_now(rank, rank.world, 4000, epoch);
          sum_now(rank, rank.world, 3, epoch, "tensor 1");
        }
      }));
    }
  }
}

TEST_CASE("join: the rank that all others wait for joined last") {
  const std::vector<int> host_of = {0, 1, 1, 0, 2};
  const Environment environment{};
  CHECK_NOTHROW(run_hosts(host_of, [](Rank& rank) {
    for (int turn = 0; turn < 2 * rank.size; ++turn) {
      // It does not join before it has heard of all others that they have: their sums are no longer in its.
      const int late = turn % rank.size;
      while (rank.rank == late) {
        const Sum sum = start_sum(rank, rank.world, 5000, 1);  // in the log of the first host
        rank.world.wait(*sum.operation, -1, nullptr);
        if (static_cast<int>((*sum.data)[0]) == late + 1) break;
      }
      expect(join_together(rank) == late, "rank " + std::to_string(late) + " joined last");
    }
  }));
}

TEST_CASE("join: one rank goes on alone, with more operations than there are request slots, names and notes") {
  const Environment environment{};
  for (const int alone : {0, 1, 2, 3}) {
    CAPTURE(alone);
    CHECK_NOTHROW(run_hosts(
        {0, 0, 1, 1},
        [alone](Rank& rank) {
          sum_now(rank, rank.world, 3, 1);
          const auto contributors = alone + 1;
          for (int k = 0; rank.rank == alone && k < 2000; ++k) {
            const std::string name = k % 3 == 0 ? "name " + std::to_string(k % 40) : "";
            const size_t count = k % 50 == 7 ? 3000 : k % 5 == 0 ? 900 : 2;
            finish_sum(rank.world, start_sum(rank, rank.world, count, k, name, false), contributors);
          }
          join_together(rank);
        },
        16));
  }
}

// The others announce the name again and again before the rank that has joined looks at what it announced.
TEST_CASE("join: what a rank announced before it joined ends as well") {
  const Environment environment{};
  for (const auto& host_of : kLayouts) {
    CAPTURE(host_of.size());
    CHECK_NOTHROW(run_hosts(host_of, [](Rank& rank) {
      for (int turn = 0; turn < rounds(40); ++turn) {
        const int first = turn % rank.size;
        std::vector<Sum> sums;
        for (const size_t count : {size_t{2}, size_t{900}, size_t{3000}}) {
          sums.push_back(start_sum(rank, rank.world, count, turn, "named " + std::to_string(count)));
          sums.push_back(start_sum(rank, rank.world, count, turn));
        }
        if (rank.rank != first) {
          for (const Sum& sum : sums) finish_sum(rank.world, sum);
          const int contributors = rank.size * (rank.size + 1) / 2 - (first + 1);
          for (int k = 0; k < 4; ++k) {
            for (const size_t count : {size_t{2}, size_t{3000}}) {
              const std::string name = "named " + std::to_string(count);
              finish_sum(rank.world, start_sum(rank, rank.world, count, k, name, k % 2 == 0), contributors);
            }
          }
        }
        rank.world.join(nullptr);
        if (rank.rank != first) continue;
        for (const Sum& sum : sums) finish_sum(rank.world, sum);
      }
    }));
  }
}

// Its host may hear that rank 2 has gone on before it hears that rank 3 has joined, without which the operation is not
// complete there.
TEST_CASE("join: what a rank announced before it joined ends, whichever rank of another host joins last") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 1, 1, 1}, [](Rank& rank) {
    for (int turn = 0; turn < rounds(300); ++turn) {
      if (rank.rank == 0) {
        const Sum sum = start_sum(rank, rank.world, 2, turn, "named");
        rank.world.join(nullptr);
        finish_sum(rank.world, sum, 1 + 3);
      } else {
        if (rank.rank == 2) {
          finish_sum(rank.world, start_sum(rank, rank.world, 2, turn, "named"), 1 + 3);
          for (int k = 0; k < 4; ++k) finish_sum(rank.world, start_sum(rank, rank.world, 2, k, "named", false), 3);
        }
        rank.world.join(nullptr);
      }
    }
  }));
}

TEST_CASE("join: what needs everybody fails on the ranks that called it, and only there") {
  const Environment environment{};
  for (const int joined : {0, 1, 3}) {
    CHECK_NOTHROW(run_hosts({0, 0, 1, 1}, [joined](Rank& rank) {
      for (const size_t count : {size_t{2}, size_t{4000}}) {
        if (rank.rank != joined) {
          Floats data(count);
          for (const Kind kind : {Kind::kAllgather, Kind::kBroadcast}) {
            for (const std::string name : {"", "named"}) {
              Request request;
              request.kind = kind;
              request.root = kind == Kind::kBroadcast ? (joined + 1) % 4 : -1;
              if (!name.empty()) request.name = &name;
              request.srcs = request.dsts = {view(data, DType::kFloat32)};
              const OperationPtr operation = rank.world.submit(request, nullptr);
              expect_contains(raised<MismatchError>([&] { rank.world.wait(*operation, -1, nullptr); }),
                              "is not supported with Join at this time");
            }
          }
          finish_sum(rank.world, start_sum(rank, rank.world, count, 1, "named"), 10 - (joined + 1));
        }
        rank.world.join(nullptr);
        sum_now(rank, rank.world, count, 2, "named");
        std::vector<float> mine = {static_cast<float>(rank.rank)};
        Request gather;
        gather.kind = Kind::kAllgather;
        gather.srcs = {view(mine, DType::kFloat32)};
        const OperationPtr operation = rank.world.submit(gather, nullptr);
        rank.world.wait(*operation, -1, nullptr);
        const float* const all = reinterpret_cast<const float*>(operation->output.get());
        for (int r = 0; r < rank.size; ++r) expect(all[r] == static_cast<float>(r), "an allgather after join()");
      }
    }));
  }
}

// The first host keeps what rank 1 has announced for the log until it is complete; what rank 0 then announces ends from
// the request slots, so nobody appends the operation.
TEST_CASE("join: what was refused and overwritten before enters no log when all have joined") {
  const Environment environment{};
  for (const std::string name : {"name", ""}) {
    CAPTURE(name);
    CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
      const ControlSegment& control = rank.world.control();
      const uint64_t request_slot = name.empty() ? 0 : Names::request_slot(0, 1);
      if (rank.rank == 0) {
        wait_for([&] {
          rank.context.try_progress();
          return control.head(request_slot, 1).tag.load() != 0;
        });
      }
      const Sum odd = start_sum(rank, rank.world, rank.rank == 0 ? 2 : 3000, 1, name);
      expect_contains(raised<MismatchError>([&] { finish_sum(rank.world, odd); }), "Mismatched");
      for (int k = 0; k < (name.empty() ? 256 : 2); ++k) sum_now(rank, rank.world, 2, k, name);
      join_together(rank);
      expect(control.header().log_tail.load() == 0, "all ends from the request slots");
    }));
  }
}

TEST_CASE("join: a rank may leave as soon as it returns") {
  const Environment environment{};
  for (int turn = 0; turn < rounds(20); ++turn) {
    CHECK_NOTHROW(run_hosts({0, 1, 2, 1}, [turn](Rank& rank) {
      for (int step = 0; step < (rank.rank + turn) % 4; ++step) {
        rank.world.wait(*start_sum(rank, rank.world, step % 2 == 0 ? 3 : 3000, step).operation, -1, nullptr);
      }
      rank.world.join(nullptr);
    }));
  }
}

}  // namespace
}  // namespace rr::test
