// Random interleavings. Every rank draws the same operations from one random sequence and submits, polls and waits in
// an order of its own. RR_TEST_ROUNDS=N sets the number of rounds: 17000 make about a million operations.
#include <algorithm>
#include <atomic>
#include <random>

#include "doctest/doctest.h"
#include "wires.h"

namespace rr::test {
namespace {

enum class What { kSum, kMismatch, kBarrier, kAllgather };

// One operation, as all ranks draw it.
struct Draw {
  What what;
  size_t group;      // 0 = world
  std::string name;  // "" = unnamed
  size_t count;
  bool sync;     // waited for at once; unnamed ones of the world only, whose order all ranks share
  int odd_rank;  // kMismatch: who differs
};

Draw draw(std::mt19937& random, int round, int index, int size) {
  Draw d = {};
  const unsigned what = random() % 100;
  d.what = what < 88 ? What::kSum : what < 92 ? What::kMismatch : what < 96 ? What::kBarrier : What::kAllgather;
  d.group = random() % 3;
  const bool named = random() % 2 == 0 && d.what != What::kBarrier;
  if (named) d.name = "tensor " + std::to_string(round % 3) + "." + std::to_string(index);
  const unsigned scale = random() % 20;
  d.count = scale < 14 ? random() % 40 : scale < 17 ? 30 + random() % 1500 : 2049 + random() % 3000;
  d.sync = !named && random() % 3 == 0;
  if (d.sync) d.group = 0;
  d.odd_rank = static_cast<int>(random() % static_cast<unsigned>(size));
  return d;
}

struct Running {
  Draw draw;
  Group* group;
  Sum sum;  // its operation, whatever the kind
};

Running start(Rank& rank, Group& group, const Draw& d, int base) {
  Running running = {d, &group, {}};
  if (d.what == What::kSum || d.what == What::kMismatch) {
    const bool odd = d.what == What::kMismatch && group.rank() == d.odd_rank % group.size();
    running.sum = start_sum(rank, group, d.count + (odd ? 1 : 0), base, d.name, !d.sync);
  } else if (d.what == What::kBarrier) {
    running.sum.operation = start_barrier(group, !d.sync);
  } else {
    running.sum.data = std::make_shared<Floats>(d.count + static_cast<size_t>(group.rank()), 1.0f);
    Request request;
    request.kind = Kind::kAllgather;
    request.srcs = {view(*running.sum.data, DType::kFloat32)};
    if (!d.name.empty()) request.name = &d.name;
    request.is_async = !d.sync;
    request.keep = running.sum.data;
    running.sum.operation = group.submit(request, nullptr);
  }
  return running;
}

void finish(const Running& running) {
  Group& group = *running.group;
  const auto wait = [&] { group.wait(*running.sum.operation, -1, nullptr); };
  if (running.draw.what == What::kMismatch && group.size() > 1) {
    expect_contains(raised<MismatchError>(wait), "Mismatched");
    return;
  }
  wait();
  if (running.draw.what == What::kSum) check_sum(running.sum, group);
  if (running.draw.what == What::kAllgather) {
    const size_t n = static_cast<size_t>(group.size());
    expect(running.sum.operation->output_nbytes == (n * running.draw.count + n * (n - 1) / 2) * sizeof(float),
           "size of an allgather");
  }
}

// One round: the unnamed operations of each group keep their order, everything else goes anywhere.
size_t play(Rank& rank, const std::vector<Group*>& groups, std::mt19937& shared, std::mt19937& own, int round) {
  std::vector<Draw> draws;
  for (int i = 0; i < 20; ++i) {
    const Draw d = draw(shared, round, i, rank.size);
    if (groups[d.group] != nullptr) draws.push_back(d);
  }
  std::vector<Draw> order;
  for (const Draw& d : draws) {
    if (d.name.empty()) order.push_back(d);
  }
  for (const Draw& d : draws) {
    if (!d.name.empty()) order.insert(order.begin() + static_cast<std::ptrdiff_t>(own() % (order.size() + 1)), d);
  }
  std::vector<Running> running;
  for (const Draw& d : order) {
    running.push_back(start(rank, *groups[d.group], d, round));
    if (d.sync) {
      finish(running.back());
      running.pop_back();
    } else if (own() % 4 == 0) {
      const Running& any = running[own() % running.size()];
      any.group->poll(*any.sum.operation);
    }
  }
  std::shuffle(running.begin(), running.end(), own);
  for (const Running& one : running) finish(one);
  return order.size();
}

// A tail of steps of which every rank does as many as it likes, then joins.
void play_join(Rank& rank, std::mt19937& shared) {
  std::vector<int> steps;
  for (int r = 0; r < rank.size; ++r) steps.push_back(static_cast<int>(shared() % 4));
  for (int step = 0; step < steps[static_cast<size_t>(rank.rank)]; ++step) {
    int contributors = 0;
    for (int r = 0; r < rank.size; ++r) contributors += steps[static_cast<size_t>(r)] > step ? r + 1 : 0;
    const size_t count = step % 2 == 0 ? 7 : 3000;
    const Sum named = start_sum(rank, rank.world, count, step, "joined");
    const Sum unnamed = start_sum(rank, rank.world, count, step);
    finish_sum(rank.world, unnamed, contributors);
    finish_sum(rank.world, named, contributors);
  }
  rank.world.join(nullptr);
}

// host_of: by rank.
void stress(const std::vector<int>& host_of, int rounds, unsigned seed) {
  const int size = static_cast<int>(host_of.size());
  std::map<int, Fd> lows, highs;
  for (const int host : host_of) {
    if (lows.count(host) != 0) continue;
    lows.emplace(host, create_memfd("low", Board::nbytes(size - 1, 64)));
    highs.emplace(host, create_memfd("high", Board::nbytes(size - 1, 64)));
  }
  const bool several = lows.size() > 1;
  std::vector<int> low_ranks, high_ranks;
  for (int r = 0; r + 1 < size; ++r) low_ranks.push_back(r);
  for (int r = 1; r < size; ++r) high_ranks.push_back(r);
  std::atomic<size_t> operations{0};
  const auto body = [&](Rank& rank) {
    const int host = host_of[static_cast<size_t>(rank.rank)];
    std::vector<Group*> groups = {&rank.world, nullptr, nullptr};
    if (rank.rank + 1 < size) {
      groups[1] = rank.context.add_group(lows.at(host).get(), low_ranks, 1, nullptr).get();
    }
    if (rank.rank > 0) groups[2] = rank.context.add_group(highs.at(host).get(), high_ranks, 2, nullptr).get();
    std::mt19937 shared(seed);
    std::mt19937 own(seed + 1 + static_cast<unsigned>(rank.rank));
    for (int round = 0; round < rounds; ++round) {
      operations += play(rank, groups, shared, own, round);
      if (round % 20 == 19) play_join(rank, shared);
    }
    barrier(rank.world);
  };
  several ? run_hosts(host_of, body) : run_ranks(size, body);
  MESSAGE(size << " ranks: " << operations.load() << " random operations");
}

TEST_CASE("random operations, kinds, sizes, names and orders, on overlapping groups, with mismatches and joins") {
  const Environment environment{{"RINGREDUCE_FUSION_THRESHOLD", "30000"}, {"RINGREDUCE_FUSION_LINGER_US", "200"}};
  CHECK_NOTHROW(stress({0, 0, 0}, rounds(600), 1));
  CHECK_NOTHROW(stress({0, 0}, rounds(200), 2));
  CHECK_NOTHROW(stress({0, 0, 0, 0, 0}, rounds(100), 3));
}

TEST_CASE("random operations on overlapping groups on several hosts, with mismatches and joins") {
  const Environment environment{{"RINGREDUCE_FUSION_THRESHOLD", "30000"}, {"RINGREDUCE_FUSION_LINGER_US", "200"}};
  CHECK_NOTHROW(stress({0, 1}, rounds(200), 4));
  CHECK_NOTHROW(stress({0, 0, 1}, rounds(200), 5));
  CHECK_NOTHROW(stress({0, 1, 0, 2, 1}, rounds(60), 6));
}

TEST_CASE("two overlapping groups in opposite orders: no deadlock, asynchronous or by names") {
  const Environment environment{};
  const Fd fd = create_memfd("pair", Board::nbytes(2, 64));
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
