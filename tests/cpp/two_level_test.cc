// Reducescatter, allgather and broadcast over hosts: what crosses the links, and sums that would show a rounding.
#include <cstring>

#include "doctest/doctest.h"
#include "loopback_links.h"

namespace rr::test {
namespace {

const std::vector<int> kTwoEach = {0, 0, 1, 1, 2, 2, 3, 3};

OperationPtr run(Rank& rank, const Request& request) {
  const OperationPtr operation = rank.world.submit(request, nullptr);
  rank.world.wait(*operation, -1, nullptr);
  return operation;
}

Request request_of(Kind kind, int root = -1) {
  Request request;
  request.kind = kind;
  request.root = root;
  return request;
}

// Bytes that each host's ranks have sent to other hosts while they ran `body`.
std::vector<uint64_t> sent_by_host(const std::vector<int>& host_of, const std::function<void(Rank&)>& body) {
  std::vector<std::atomic<uint64_t>> sent(4);
  run_hosts(host_of, [&](Rank& rank) {
    const uint64_t before = rank.context.stats().bytes_on_wire;
    body(rank);
    sent[static_cast<size_t>(host_of[static_cast<size_t>(rank.rank)])] += rank.context.stats().bytes_on_wire - before;
    barrier(rank.world);
  });
  return {sent.begin(), sent.end()};
}

// Frames of leaders come on top.
void check_sent(const std::vector<uint64_t>& sent, uint64_t nbytes, const std::string& what) {
  for (const uint64_t host : sent) {
    CAPTURE(what);
    CHECK(host >= nbytes);
    CHECK(host < nbytes + nbytes / 50 + 4096);
  }
}

TEST_CASE("four hosts of two ranks: each byte crosses each host's link as often as it must") {
  const Environment environment{};
  for (const size_t count : {size_t{8000}, size_t{80000}}) {  // floats of a rank; straight, and round a ring
    const uint64_t nbytes = count * sizeof(float);
    CAPTURE(count);
    check_sent(sent_by_host(kTwoEach,
                            [&](Rank& rank) {
                              Floats mine(count, 1.0F);
                              Request request = request_of(Kind::kAllgather);
                              request.srcs = {view(mine, DType::kFloat32)};
                              run(rank, request);
                            }),
               3 * 2 * nbytes, "allgather: the blocks of two ranks, to three hosts");
    check_sent(sent_by_host(kTwoEach,
                            [&](Rank& rank) {
                              Floats all(8 * count, 1.0F);
                              Floats mine(count);
                              Request request = request_of(Kind::kReduceScatter);
                              request.srcs = {view(all, DType::kFloat32)};
                              request.dsts = {view(mine, DType::kFloat32)};
                              run(rank, request);
                            }),
               3 * 2 * nbytes, "reducescatter: what the ranks of three hosts keep");
  }
  const std::vector<uint64_t> sent = sent_by_host(kTwoEach, [&](Rank& rank) {
    Floats all(200000, 1.0F);
    Request request = request_of(Kind::kBroadcast, 3);
    request.srcs = request.dsts = {view(all, DType::kFloat32)};
    run(rank, request);
  });
  const uint64_t nbytes = 200000 * sizeof(float);
  for (const int host : {1, 2, 3}) {
    CHECK(sent[static_cast<size_t>(host)] >= nbytes);
    CHECK(sent[static_cast<size_t>(host)] < nbytes + nbytes / 50);
  }
  CHECK(sent[0] < nbytes / 50);  // the last of the chain that begins on host 1
}

TEST_CASE("allgather of blocks of very different lengths, some of them empty") {
  for (const auto& host_of : {kTwoEach, std::vector<int>{0, 0, 0, 1, 1}}) {
    CAPTURE(host_of.size());
    const Environment environment{};
    CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
      const size_t counts[] = {400000, 5, 0, 4000, 70000, 1, 0, 300};
      Floats mine(counts[rank.rank], static_cast<float>(rank.rank));
      Request request = request_of(Kind::kAllgather);
      request.srcs = {view(mine, DType::kFloat32)};
      const OperationPtr done = run(rank, request);
      const float* at = reinterpret_cast<const float*>(done->output.get());
      for (int r = 0; r < rank.size; ++r) {
        for (size_t i = 0; i < counts[r]; ++i) expect(*at++ == static_cast<float>(r), "element of a block");
      }
      barrier(rank.world);
    }));
  }
}

uint16_t bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// 256 + 1 is no bfloat16: a sum that is rounded on each host, or at each addition, misses the ones.
TEST_CASE("reducescatter of bfloat16: sums of hosts are not rounded") {
  for (const size_t rows : {size_t{80}, size_t{800000}}) {
    for (const auto& host_of : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 0, 1}}) {
      const Environment environment{};
      CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
        std::vector<uint16_t> all(rows, bfloat(rank.rank == 0 ? 256.0F : 1.0F));
        std::vector<uint16_t> mine(rows / 4);
        Request request = request_of(Kind::kReduceScatter);
        request.srcs = {view(all, DType::kBFloat16)};
        request.dsts = {view(mine, DType::kBFloat16)};
        run(rank, request);
        for (const uint16_t one : mine) expect(one == bfloat(260.0F), "256 + 1 + 1 + 1, rounded once: 260");
      }));
    }
  }
}

TEST_CASE("reducescatter on several hosts: factors and averages, in every layout") {
  std::vector<std::vector<int>> layouts = kLayouts;
  layouts.push_back(kTwoEach);
  for (const auto& host_of : layouts) {
    for (const size_t rows_each : {size_t{3}, size_t{70001}}) {
      CAPTURE(host_of.size());
      CAPTURE(rows_each);
      const Environment environment{};
      CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
        const size_t size = static_cast<size_t>(rank.size);
        const size_t rows = rows_each * size + 1;  // one rank has a row more
        Floats all(rows);
        for (size_t i = 0; i < rows; ++i) all[i] = static_cast<float>(4 * (i % 1000) + 8 * size * (rank.rank == 0));
        const Range kept = segment(rows, rank.size, rank.rank);
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
          Floats mine(kept.count(), -1.0F);
          Request request = request_of(Kind::kReduceScatter);
          request.op = op;
          request.prescale = 0.5;
          request.postscale = op == ReduceOp::kSum ? 4.0 : 1.0;
          request.srcs = {view(all, DType::kFloat32)};
          request.dsts = {view(mine, DType::kFloat32)};
          run(rank, request);
          for (size_t i = 0; i < mine.size(); ++i) {
            const double each = static_cast<double>(4 * ((kept.begin + i) % 1000));
            const double n = static_cast<double>(size);
            const double wanted = op == ReduceOp::kSum ? 4.0 * 0.5 * (n * each + 8 * n) : 0.5 * (each + 8);
            expect(std::abs(static_cast<double>(mine[i]) - wanted) <= 1e-5 * wanted,
                   std::string(name(op)) + " element");
          }
        }
        barrier(rank.world);
      }));
    }
  }
}

}  // namespace
}  // namespace rr::test
