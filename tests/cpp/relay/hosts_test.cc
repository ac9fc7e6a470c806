// Groups on several hosts: what the leaders pass on. Results of the collectives are checked where those of one host
// are.
#include "negotiation/segment/hosts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "doctest/doctest.h"
#include "support/loopback_links.h"
#include "support/reduce_oracle.h"

namespace rr::test {
namespace {

TEST_CASE("hosts are numbered by their lowest rank") {
  const Hosts hosts({7, 3, 7, 5, 3}, 4);
  CHECK(hosts.of == std::vector<int>{0, 1, 0, 2, 1});
  CHECK(hosts.mine == 1);
  CHECK(hosts.here() == std::vector<int>{1, 4});
  CHECK(hosts.leader(2) == 3);
  CHECK(hosts.several());
  CHECK_FALSE(Hosts({4, 4}, 1).several());
  const Hosts without_host_0 = hosts.narrowed({1, 3, 4});
  CHECK(without_host_0.members == std::vector<std::vector<int>>{{1, 4}, {3}});
  CHECK(without_host_0.mine == 0);
  CHECK(hosts.narrowed({2, 4}).here() == std::vector<int>{4});
}

TEST_CASE("the eager limit: a host sends at most 64 KiB of an operation's input, whatever the hosts and their ranks") {
  const auto limit = [](int hosts, int ranks_of_host) {
    std::vector<int> labels;
    for (int r = 0; r < hosts * ranks_of_host; ++r) labels.push_back(r / ranks_of_host);
    return usual_eager_nbytes(Hosts(labels, 0));
  };
  CHECK(limit(1, 8) == 8192);
  CHECK(limit(4, 2) == 8192);
  CHECK(limit(4, 8) == 65536 / 24);
  CHECK(limit(16, 8) == 65536 / 120);
  CHECK(limit(512, 8) == kInlineNbytes);
  CHECK(usual_eager_nbytes(Hosts({0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}, 0)) ==
        65536 / 18);  // the host of most ranks counts
}

TEST_CASE("the eager limit of a process set is that of its own hosts") {
  const std::vector<int> host_of = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const std::vector<std::vector<int>> sets = {{0, 1, 2}, {0, 9}};
  std::vector<Fd> segments;  // by set and host
  for (const auto& ranks : sets) {
    for (int host = 0; host < 2; ++host) {
      segments.push_back(create_memfd("group", ControlSegment::nbytes(static_cast<int>(ranks.size()), 64)));
    }
  }
  const auto expect_limit = [](Rank& rank, Group& group, size_t nbytes) {
    expect(group.control().header().eager_nbytes == nbytes, std::to_string(group.control().header().eager_nbytes));
    for (const size_t count : {nbytes / sizeof(float), nbytes / sizeof(float) + 1}) sum_now(rank, group, count, 0);
  };
  CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
    expect_limit(rank, rank.world, 65536 / 9);
    for (size_t i = 0; i < sets.size(); ++i) {
      if (std::find(sets[i].begin(), sets[i].end(), rank.rank) == sets[i].end()) continue;
      const size_t segment = 2 * i + static_cast<size_t>(host_of[static_cast<size_t>(rank.rank)]);
      const int id = static_cast<int>(i) + 1;
      expect_limit(rank, *rank.context.add_group(segments[segment].get(), sets[i], id, nullptr), 8192);
    }
    barrier(rank.world);
  }));
}

// Small and large, named and unnamed, waited for in another order than submitted; each rank in an order of its own.
TEST_CASE("any order of named operations, and many unnamed ones in flight") {
  for (const auto& host_of : kLayouts) {
    CAPTURE(host_of.size());
    const Environment environment{};
    CHECK_NOTHROW(run_hosts(host_of, [](Rank& rank) {
      for (int round = 0; round < rounds(20); ++round) {
        std::vector<Sum> sums(24);
        for (size_t k = 0; k < sums.size(); ++k) {
          const size_t which = (k + static_cast<size_t>(rank.rank) * 5) % sums.size();
          const size_t count = which % 3 == 0 ? 3 : which % 3 == 1 ? 900 : 20000;
          sums[which] =
              start_sum(rank, rank.world, count, static_cast<int>(which) + round, "sum " + std::to_string(which));
        }
        for (const Sum& sum : sums) finish_sum(rank.world, sum);
        std::vector<Sum> unnamed;
        for (int k = 0; k < 70; ++k) {
          unnamed.push_back(start_sum(rank, rank.world, k % 4 == 0 ? 5000 : 300 * static_cast<size_t>(k % 5), k));
        }
        for (size_t k = unnamed.size(); k-- > 0;) finish_sum(rank.world, unnamed[k]);
      }
    }));
  }
}

TEST_CASE("more unnamed operations than there are request slots, one after the other and ahead of the others") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [](Rank& rank) {
    for (int k = 0; k < 1000; ++k) sum_now(rank, rank.world, k % 7 == 0 ? 1000 : 2, k);
    std::vector<Sum> sums;
    for (int k = 0; k < 600; ++k) sums.push_back(start_sum(rank, rank.world, k % 7 == 0 ? 1000 : 2, k));
    for (const Sum& sum : sums) finish_sum(rank.world, sum);
  }));
}

TEST_CASE("many more names than the table holds") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts(
      {0, 1, 1},
      [](Rank& rank) {
        for (int k = 0; k < rounds(2000); ++k) {
          sum_now(rank, rank.world, k % 5 == 0 ? 9000 : 2, k, "name " + std::to_string(k));
        }
      },
      16));
}

// Element i of rank r is r + 1 + i % 7. Enough of them for a pipeline of many pieces.
template <class T>
void check_scaled_sum(Rank& rank, DType dtype, ReduceOp op, double prescale, double postscale, size_t count) {
  std::vector<T> src(count);
  std::vector<T> dst(count);
  for (size_t i = 0; i < count; ++i) src[i] = static_cast<T>(static_cast<size_t>(rank.rank) + 1 + i % 7);
  Request request;
  request.kind = Kind::kAllreduce;
  request.op = op;
  request.prescale = prescale;
  request.postscale = postscale;
  request.srcs = {view(src, dtype)};
  request.dsts = {view(dst, dtype)};
  rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
  const double ranks = rank.size * (rank.size + 1) / 2.0;
  for (size_t i = 0; i < count; ++i) {
    double expected = (ranks + rank.size * static_cast<double>(i % 7)) * prescale * postscale;
    if (op == ReduceOp::kAverage) expected /= rank.size;
    if (std::abs(static_cast<double>(dst[i]) - expected) > 1e-5 * expected) {
      throw std::logic_error("element " + std::to_string(i) + " is " + std::to_string(dst[i]) + ", not " +
                             std::to_string(expected));
    }
  }
}

TEST_CASE("long tensors go in many pieces; factors are applied once, also where hosts have one rank and several") {
  const Environment environment{};
  for (const auto& host_of : kLayouts) {
    CAPTURE(host_of.size());
    CHECK_NOTHROW(run_hosts(
        host_of,
        [](Rank& rank) {
          for (const size_t count : {size_t{40}, size_t{100003}}) {
            check_scaled_sum<float>(rank, DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, count);
            check_scaled_sum<float>(rank, DType::kFloat32, ReduceOp::kSum, 0.5, 4.0, count);
            check_scaled_sum<double>(rank, DType::kFloat64, ReduceOp::kAverage, 2.0, 1.0, count);
            check_scaled_sum<int64_t>(rank, DType::kInt64, ReduceOp::kSum, 1.0, 1.0, count);
          }
        },
        64, 32768));
  }
}

struct ScaledIntegers {
  DType dtype;
  ReduceOp op;
  double prescale, postscale;
  size_t count;
  std::vector<rr_test::Bytes> inputs = {};  // by rank
  rr_test::Bytes wanted = {};
};

ScaledIntegers with_data(ScaledIntegers c, int size) {
  const size_t item = itemsize(c.dtype);
  for (int r = 0; r < size; ++r) {
    rr_test::Bytes& input = c.inputs.emplace_back(c.count * item);
    for (size_t i = 0; i < c.count; ++i) {  // whole numbers below 114, little-endian
      input[i * item] = static_cast<uint8_t>(1 + (i * 7 + static_cast<size_t>(r) * 13) % 113);
    }
  }
  c.wanted = rr_test::oracle({c.dtype, c.op, c.prescale, c.postscale, size}, c.inputs);
  return c;
}

void check_integers(Rank& rank, const ScaledIntegers& c) {
  rr_test::Bytes data = c.inputs[static_cast<size_t>(rank.rank)];
  TensorView tensor;
  tensor.data = reinterpret_cast<std::byte*>(data.data());
  tensor.dtype = c.dtype;
  tensor.count = tensor.dims[0] = c.count;
  tensor.ndim = 1;
  Request request;
  request.kind = Kind::kAllreduce;
  request.op = c.op;
  request.prescale = c.prescale;
  request.postscale = c.postscale;
  request.srcs = request.dsts = {tensor};
  rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
  expect(data == c.wanted, std::string("the oracle's ") + name(c.dtype) + ", " + std::to_string(c.count));
}

// Each input is scaled and truncated by itself, and the sum once: a partial sum that had been scaled, or had wrapped
// around, would be another one.
TEST_CASE("integers with factors are scaled one by one, on any hosts") {
  const Environment environment{};
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1, 1, 2}}) {
    CAPTURE(host_of.size());
    const int size = static_cast<int>(host_of.size());
    std::vector<ScaledIntegers> cases;
    for (const auto& [prescale, postscale] : {std::pair{0.5, 1.0}, {1.0, 0.5}, {0.7, 1.3}}) {
      for (const size_t count : {size_t{9}, size_t{20001}}) {  // from the request slots, and between hosts
        cases.push_back(with_data({DType::kInt8, ReduceOp::kSum, prescale, postscale, count}, size));
        cases.push_back(with_data({DType::kInt32, ReduceOp::kSum, prescale, postscale, count}, size));
        cases.push_back(with_data({DType::kInt64, ReduceOp::kAverage, prescale, postscale, count}, size));
      }
    }
    cases.push_back(with_data({DType::kInt8, ReduceOp::kSum, 0.5, 1.0, (1 << 20) + 1}, size));  // as long as for a ring
    const auto check = [&cases](Rank& rank) {
      for (const ScaledIntegers& one : cases) check_integers(rank, one);
    };
    CHECK_NOTHROW(run_hosts(host_of, check, 64, 32768));
  }
}

std::vector<Floats> random_sums(Rank& rank) {
  std::mt19937 random(static_cast<unsigned>(rank.rank));
  std::normal_distribution<float> normal;
  std::vector<Floats> sums;
  std::vector<OperationPtr> operations;
  for (size_t k = 0; k < 12; ++k) {
    sums.emplace_back(k % 6 == 5 ? 300007 : 3001 + 17 * k);  // a ring, or not
    for (float& value : sums.back()) value = normal(random);
  }
  for (Floats& tensor : sums) {
    Request request;
    request.kind = Kind::kAllreduce;
    request.srcs = request.dsts = {view(tensor, DType::kFloat32)};
    request.is_async = true;
    operations.push_back(rank.world.submit(request, nullptr));
  }
  for (const OperationPtr& operation : operations) rank.world.wait(*operation, -1, nullptr);
  return sums;
}

// Sums of random numbers depend on the order of the additions.
TEST_CASE("the same bits on all ranks, whatever shares a bucket") {
  const std::vector<int> host_of = {0, 1, 2, 1, 0};
  std::vector<Floats> first;
  for (const bool shares : {false, true}) {
    const Environment environment{{"RINGREDUCE_FUSION_THRESHOLD", shares ? "100000000" : "0"}};
    std::vector<std::vector<Floats>> results(host_of.size());
    run_hosts(host_of, [&](Rank& rank) {
      const Stats& stats = rank.context.stats();
      // A slow rank can let the others see its tensors one by one; what shares a bucket is the same on all ranks.
      for (int tries = 0; tries < 200; ++tries) {
        results[static_cast<size_t>(rank.rank)] = random_sums(rank);
        if (!shares || stats.fused_operations > 0) break;
      }
      expect((stats.fused_operations > 0) == shares, "some shared a bucket");
    });
    if (first.empty()) first = results[0];
    for (const auto& result : results) CHECK(result == first);
  }
}

TEST_CASE("a mismatch is an error on all hosts, and the group goes on") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 0, 1, 1}, [](Rank& rank) {
    for (const size_t count : {size_t{4}, size_t{50000}}) {
      const size_t mine = rank.rank == 3 ? count + 1 : count;
      for (const char* name : {"", "odd"}) {
        const Sum sum = start_sum(rank, rank.world, mine, 1, name);
        const std::string text = raised<MismatchError>([&] { finish_sum(rank.world, sum); });
        expect_contains(text, "Mismatched ALLREDUCE tensor shapes");
        expect_contains(text, "rank 3");
        sum_now(rank, rank.world, count, 2);
      }
    }
  }));
}

// The leaders look after their links meanwhile.
TEST_CASE("ranks may attach to the job's memory long after the leaders of their hosts") {
  const Environment environment{{"RINGREDUCE_INIT_TIMEOUT", "20"}};
  std::atomic<int> looks[2] = {};  // of ranks 0 and 2, at what the other has said
  class CountedLink final : public Link {
   public:
    CountedLink(std::unique_ptr<Link> link, std::atomic<int>& looks) : link_(std::move(link)), looks_(looks) {}
    size_t push(const void* bytes, size_t nbytes) override { return link_->push(bytes, nbytes); }
    size_t pull(void* bytes, size_t nbytes) override {
      ++looks_;
      return link_->pull(bytes, nbytes);
    }
    size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
      return link_->fold(dst, nbytes, reduction, kernels);
    }

   private:
    const std::unique_ptr<Link> link_;
    std::atomic<int>& looks_;
  };
  const auto attach_late = [&](std::unique_ptr<Link> end, int rank, int, int channel) -> std::unique_ptr<Link> {
    // Rank 0 waits for rank 1 alone, and rank 2, which hears of that later, for rank 3.
    if (rank != 0) wait_for([&] { return looks[rank / 3] > 2; });
    if (rank % 2 != 0 || !carries_control(channel)) return end;
    return std::make_unique<CountedLink>(std::move(end), looks[rank / 2]);
  };
  CHECK_NOTHROW(
      run_hosts({0, 0, 1, 1}, [](Rank& rank) { sum_now(rank, rank.world, 5, 1); }, 64, 8192, nullptr, attach_late));
}

// Each is removed on a host as soon as that host knows that all agree, which the others may still have to hear.
TEST_CASE("groups come and go, with operations pending in them") {
  const std::vector<int> host_of = {0, 0, 1, 2};
  const int groups = rounds(40);
  std::vector<Fd> segments;
  for (int i = 0; i < 3 * groups; ++i) segments.push_back(create_memfd("group", ControlSegment::nbytes(4, 64)));
  const Environment environment{};
  CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
    const int host = host_of[static_cast<size_t>(rank.rank)];
    for (int id = 1; id <= groups; ++id) {
      const int fd = segments[static_cast<size_t>(3 * (id - 1) + host)].get();
      Group& group = *rank.context.add_group(fd, {0, 1, 2, 3}, id, nullptr);
      sum_now(rank, group, id % 2 == 0 ? 3 : 3000, id);
      std::vector<Sum> called_by_all;
      for (const size_t count : {3, 3000}) {
        called_by_all.push_back(start_sum(rank, group, count, id));
        called_by_all.push_back(start_sum(rank, group, count, id, std::to_string(count)));
      }
      const Sum lonely = start_sum(rank, group, 5, 1, "only rank " + std::to_string(rank.rank));
      rank.context.remove_group(&group, nullptr);
      for (const Sum& sum : called_by_all) finish_sum(rank.world, sum, 1 + 2 + 3 + 4);
      expect_contains(raised<ShutdownError>([&] { finish_sum(rank.world, lonely); }), "process set was removed");
    }
    sum_now(rank, rank.world, 5, 1);
  }));
}

// Each group has links of its own: what one has pushed would else be taken by the other.
TEST_CASE("long operations of two groups that are under way at once do not mix") {
  const std::vector<int> host_of = {0, 1};
  std::vector<Fd> segments;
  for (int host = 0; host < 2; ++host) segments.push_back(create_memfd("group", ControlSegment::nbytes(2, 64)));
  const Environment environment{};
  CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
    const int fd = segments[static_cast<size_t>(rank.rank)].get();
    Group& group = *rank.context.add_group(fd, {0, 1}, 1, nullptr);
    for (int turn = 0; turn < 10; ++turn) {
      // The ranks begin with different ones, so that both are under way on each.
      const std::array<Group*, 2> order = {rank.rank == 0 ? &rank.world : &group,
                                           rank.rank == 0 ? &group : &rank.world};
      std::vector<Sum> sums;
      for (Group* one : order) {
        sums.push_back(start_sum(rank, *one, 20'000, one == &group ? 50 + turn : turn, "long"));
      }
      for (size_t k = 0; k < 2; ++k) finish_sum(*order[k], sums[k]);
    }
    rank.context.remove_group(&group, nullptr);
  }));
}

}  // namespace
}  // namespace rr::test
