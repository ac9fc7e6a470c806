// Collectives over hosts on two levels: what crosses the links, and sums that would show a rounding.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "doctest/doctest.h"
#include "support/loopback_links.h"
#include "support/sanitizer.h"

namespace rr::test {
namespace {

const std::vector<int> kTwoEach = {0, 0, 1, 1, 2, 2, 3, 3};

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

uint16_t bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

uint16_t half(float value) {
  uint16_t bits;
  kernels("portable").encode(Codec::kFp16, &value, reinterpret_cast<std::byte*>(&bits), 1);
  return bits;
}

Request half_request(Kind kind, DType dtype, std::vector<uint16_t>& src, std::vector<uint16_t>& dst) {
  Request request = request_of(kind);
  request.srcs = {view(src, dtype)};
  request.dsts = {view(dst, dtype)};
  return request;
}

// Unscaled, the values are inf or 0 in 16 bits. A host of one rank has nothing to add up before they cross.
TEST_CASE("elements are multiplied before they are narrowed, whatever their number and the ranks of a host") {
  const Environment environment{};
  struct Scaled {
    float value;
    double prescale;
  };
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1}, {0, 0, 1}, {0, 0, 1, 1}}) {
    for (const size_t count : {size_t{1000}, size_t{20000}, size_t{262143}, size_t{262144}}) {
      for (const Scaled& scaled : {Scaled{1e6F, 1e-3}, Scaled{1e-9F, 1e6}}) {
        CAPTURE(host_of.size());
        CAPTURE(count);
        CAPTURE(scaled.value);
        const auto check = [&](Rank& rank) {
          std::vector<float> values(count, scaled.value);
          Request request = request_of(Kind::kAllreduce);
          request.op = ReduceOp::kAverage;
          request.prescale = scaled.prescale;
          request.codec = Codec::kFp16;
          request.srcs = {view(values, DType::kFloat32)};
          request.dsts = request.srcs;
          run(rank, request);
          const double wanted = scaled.value * scaled.prescale;
          for (const float value : values) {
            expect(std::abs(value - wanted) < wanted * 2e-3, "average of scaled elements that cross as fp16");
          }
        };
        CHECK_NOTHROW(run_hosts(host_of, check));
      }
    }
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
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(std::string(name(dtype)));
    check_sent(sent_by_host(kTwoEach,
                            [&](Rank& rank) {
                              std::vector<uint16_t> all(409600);
                              Request request = request_of(Kind::kAllreduce);
                              request.srcs = request.dsts = {view(all, dtype)};
                              run(rank, request);
                            }),
               2 * 3 * 409600 * sizeof(uint16_t) / 4, "all-reduce of 16-bit floats");
    check_sent(sent_by_host(kTwoEach,
                            [&](Rank& rank) {
                              std::vector<uint16_t> all(409600);
                              std::vector<uint16_t> mine(all.size() / 8);
                              run(rank, half_request(Kind::kReduceScatter, dtype, all, mine));
                            }),
               3 * 409600 * sizeof(uint16_t) / 4, "reducescatter of 16-bit floats");
  }
  // An average of integers is of all ranks' inputs at once: a host's ranks are each sent their part by six others, and
  // send their result to them. Parts are whole cache lines, so some are longer than others.
  const size_t elements = 200000;
  std::vector<uint64_t> sent = sent_by_host(kTwoEach, [&](Rank& rank) {
    std::vector<int32_t> all(elements);
    for (size_t i = 0; i < elements; ++i) all[i] = static_cast<int32_t>(i % 1000) * 8 + rank.rank;
    Request request = request_of(Kind::kAllreduce);
    request.op = ReduceOp::kAverage;
    request.srcs = request.dsts = {view(all, DType::kInt32)};
    run(rank, request);
    for (size_t i = 0; i < elements; ++i) {
      expect(all[i] == static_cast<int32_t>(i % 1000) * 8 + 3, "the average of 0 to 7 is 3.5");
    }
  });
  for (const uint64_t host : sent) {
    CHECK(host > 2 * 2 * 6 * elements * sizeof(int32_t) / 8 * 49 / 50);
    CHECK(host < 2 * 2 * 6 * elements * sizeof(int32_t) / 8 * 51 / 50);
  }
  sent = sent_by_host(kTwoEach, [&](Rank& rank) {
    Floats all(300000, 1.0F);
    Floats sum(all.size());
    Request request = request_of(Kind::kReduce, 4);
    request.srcs = {view(all, DType::kFloat32)};
    request.dsts = {view(sum, DType::kFloat32)};
    run(rank, request);
  });
  CHECK(sent[2] < 300000 * sizeof(float) / 50);  // the chain ends there
  for (const int host : {0, 1, 3}) {
    CAPTURE(host);
    CHECK(sent[static_cast<size_t>(host)] >= 300000 * sizeof(float));
    CHECK(sent[static_cast<size_t>(host)] < 300000 * sizeof(float) * 51 / 50);
  }
  sent = sent_by_host(kTwoEach, [&](Rank& rank) {
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

TEST_CASE("reducescatter on hosts of unequal numbers of ranks: no more crosses than what the ranks of others keep") {
  const Environment environment{};
  const uint64_t nbytes = 80000 * sizeof(float);  // of a rank
  const std::vector<uint64_t> sent = sent_by_host({0, 0, 0, 1, 2}, [&](Rank& rank) {
    Floats all(5 * 80000, 1.0F);
    Floats mine(80000);
    Request request = request_of(Kind::kReduceScatter);
    request.srcs = {view(all, DType::kFloat32)};
    request.dsts = {view(mine, DType::kFloat32)};
    run(rank, request);
    expect(mine == Floats(80000, 5.0F), "the sum");
  });
  for (const size_t host : {size_t{0}, size_t{1}, size_t{2}}) {
    CAPTURE(host);
    const uint64_t of_others = (host == 0 ? 2 : 4) * nbytes;
    CHECK(sent[host] >= of_others);
    CHECK(sent[host] < of_others + of_others / 50 + 4096);
  }
}

TEST_CASE("gather, scatter, alltoall on hosts of unequal numbers of ranks: each byte crosses once") {
  const Environment environment{};
  const std::vector<int> host_of = {0, 0, 0, 1, 2};
  static constexpr size_t kCount = 40000;  // floats from a rank, or from a rank to a rank
  const auto check_blocks = [](const std::vector<uint64_t>& sent, const std::vector<uint64_t>& blocks) {
    for (size_t host = 0; host < blocks.size(); ++host) {
      CAPTURE(host);
      const uint64_t nbytes = blocks[host] * kCount * sizeof(float);
      CHECK(sent[host] >= nbytes);
      CHECK(sent[host] < nbytes + nbytes / 50 + 4096);
    }
  };
  const auto gathered = sent_by_host(host_of, [](Rank& rank) {
    Floats mine(kCount, 1.0F);
    Request request = request_of(Kind::kGather, 1);
    request.srcs = {view(mine, DType::kFloat32)};
    run(rank, request);
  });
  check_blocks(gathered, {0, 1, 1});
  const auto scattered = sent_by_host(host_of, [](Rank& rank) {
    Floats all(5 * kCount, 1.0F);
    Floats mine(kCount);
    Request request = request_of(Kind::kScatter, 3);
    if (rank.rank == 3) request.srcs = {view(all, DType::kFloat32)};
    request.dsts = {view(mine, DType::kFloat32)};
    run(rank, request);
  });
  check_blocks(scattered, {0, 4, 0});
  const auto exchanged = sent_by_host(host_of, [](Rank& rank) {
    Floats mine(5 * kCount, 1.0F);
    Request request = request_of(Kind::kAlltoall);
    request.splits.assign(5, kCount);
    request.srcs = {view(mine, DType::kFloat32)};
    run(rank, request);
  });
  check_blocks(exchanged, {6, 4, 4});
}

TEST_CASE("a short all-reduce crosses in one step, by one rank of each host") {
  const Environment environment{};
  std::vector<std::atomic<uint64_t>> sent(kTwoEach.size());
  const uint64_t nbytes = 4000 * sizeof(float);
  CHECK_NOTHROW(run_hosts(kTwoEach, [&](Rank& rank) {
    const uint64_t before = rank.context.stats().bytes_on_wire;
    Floats data(4000, 1.0F);
    Request request = request_of(Kind::kAllreduce);
    request.srcs = request.dsts = {view(data, DType::kFloat32)};
    run(rank, request);
    sent[static_cast<size_t>(rank.rank)] = rank.context.stats().bytes_on_wire - before;
    expect(data == Floats(4000, 8.0F), "the sum");
    barrier(rank.world);
  }));
  for (size_t r = 0; r < sent.size(); ++r) {
    CAPTURE(r);
    CHECK(sent[r] >= (r % 2 == 0 ? 3 * nbytes : 0));
    CHECK(sent[r] < (r % 2 == 0 ? 3 * nbytes + 4096 : 4096));
  }
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

// 256 + 1 is no bfloat16: a sum that is rounded at each addition misses the ones.
TEST_CASE("bfloat16 on hosts of several ranks: a host's sum is rounded once") {
  for (const size_t rows : {size_t{60}, size_t{600000}}) {
    const Environment environment{};
    CHECK_NOTHROW(run_hosts({0, 0, 0, 1, 1, 1}, [&](Rank& rank) {
      std::vector<uint16_t> all(rows, bfloat(rank.rank == 0 ? 256.0F : rank.rank < 3 ? 1.0F : 2.0F));
      std::vector<uint16_t> mine(rows / 6);
      run(rank, half_request(Kind::kReduceScatter, DType::kBFloat16, all, mine));
      for (const uint16_t one : mine) expect(one == bfloat(264.0F), "(256 + 1 + 1) + (2 + 2 + 2), scattered");
      run(rank, half_request(Kind::kAllreduce, DType::kBFloat16, all, all));
      for (const uint16_t one : all) expect(one == bfloat(264.0F), "(256 + 1 + 1) + (2 + 2 + 2)");
      barrier(rank.world);
    }));
  }
}

TEST_CASE("float16 on hosts of several ranks: an average is there where the sum of a host would be infinite") {
  constexpr uint16_t kLarge = 0x7b00;  // 57344; float16 ends at 65504
  constexpr uint16_t kTiny = 0x0003;   // 3 of the least ones, 2^-24
  const Environment environment{};
  CHECK_NOTHROW(run_hosts(kTwoEach, [&](Rank& rank) {
    std::vector<uint16_t> all(8000, kLarge);
    std::fill(all.begin() + 4000, all.end(), kTiny);  // within a block of 256, which has one scale
    const std::vector<uint16_t> wanted = all;
    std::vector<uint16_t> mine(1000);
    Request request = half_request(Kind::kReduceScatter, DType::kFloat16, all, mine);
    request.op = ReduceOp::kAverage;
    run(rank, request);
    for (const uint16_t one : mine) expect(one == (rank.rank < 4 ? kLarge : kTiny), "average of equals, scattered");
    request = half_request(Kind::kAllreduce, DType::kFloat16, all, all);
    request.op = ReduceOp::kAverage;
    run(rank, request);
    expect(all == wanted, "average of equals");
    barrier(rank.world);
  }));
}

TEST_CASE("float16 on hosts of several ranks: the least number is in a sum") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts(kTwoEach, [&](Rank& rank) {
    std::vector<uint16_t> all(6000, rank.rank == 3 ? 1 : 0);
    run(rank, half_request(Kind::kAllreduce, DType::kFloat16, all, all));
    expect(all == std::vector<uint16_t>(6000, 1), "2^-24");
    barrier(rank.world);
  }));
}

TEST_CASE("float16 on hosts of three ranks: sums that float16 has are exact") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 0, 0, 1, 1, 1}, [&](Rank& rank) {
    std::vector<uint16_t> all(6000);
    std::vector<uint16_t> wanted(6000);
    for (size_t i = 0; i < all.size(); ++i) {
      const float mine = static_cast<float>(i % 150 + static_cast<size_t>(rank.rank));
      const float sum = static_cast<float>(6 * (i % 150) + 15);
      all[i] = half(mine);
      wanted[i] = half(sum);
    }
    run(rank, half_request(Kind::kAllreduce, DType::kFloat16, all, all));
    expect(all == wanted, "sums");
    barrier(rank.world);
  }));
}

Floats floats_of(DType dtype, const std::vector<uint16_t>& halves) {
  const Codec format = dtype == DType::kFloat16 ? Codec::kFp16 : Codec::kBf16;
  Floats values(halves.size());
  kernels("portable").decode(format, reinterpret_cast<const std::byte*>(halves.data()), values.data(), halves.size());
  return values;
}

// Of many magnitudes, an odd number of them of small ones; a few are infinite or no numbers. The same in every run.
std::vector<uint16_t> random_halves(DType dtype, int rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + static_cast<unsigned>(count));
  Floats values(count);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random() % 2000) - 1000.0F,
                       static_cast<int>(random() % (count % 2 == 0 ? 31 : 3)) - 24);
  }
  std::vector<uint16_t> tensor(count);
  kernels("portable")
      .encode(dtype == DType::kFloat16 ? Codec::kFp16 : Codec::kBf16, values.data(),
              reinterpret_cast<std::byte*>(tensor.data()), count);
  for (uint16_t& one : tensor) {
    if (random() % 500 == 0) one = static_cast<uint16_t>(random());
  }
  return tensor;
}

bool same_halves(DType dtype, const std::vector<uint16_t>& got, const std::vector<uint16_t>& want) {
  const Floats got_values = floats_of(dtype, got);
  const Floats values = floats_of(dtype, want);
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(values[i]) ? !std::isnan(got_values[i]) : got[i] != want[i]) return false;
  }
  return true;
}

// Who owns an element, between hosts, and its neighbours depend on the bucket.
TEST_CASE("16-bit floats on hosts of several ranks: a tensor has the same bits alone and in a bucket") {
  const Environment environment{};
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    CAPTURE(std::string(name(dtype)));
    CHECK_NOTHROW(run_hosts(kTwoEach, [&](Rank& rank) {
      std::vector<std::vector<uint16_t>> tensors;
      for (const size_t count : {3000, 777, 20000, 155, 530011}) {
        tensors.push_back(random_halves(dtype, rank.rank, count));
      }
      std::vector<std::vector<uint16_t>> together = tensors;
      Request bucket = request_of(Kind::kAllreduce);
      for (auto& tensor : together) bucket.srcs.push_back(view(tensor, dtype));
      bucket.dsts = bucket.srcs;
      run(rank, bucket);
      const std::string name = "alone";  // a short one without a name would be folded in the order of all ranks
      for (auto& tensor : tensors) {
        Request alone = half_request(Kind::kAllreduce, dtype, tensor, tensor);
        alone.name = &name;
        run(rank, alone);
      }
      for (size_t i = 0; i < tensors.size(); ++i) {
        expect(same_halves(dtype, together[i], tensors[i]), "bits of tensor " + std::to_string(i));
      }
      barrier(rank.world);
    }));
  }
}

// The sum of each host, in rank order, goes as 16 bits; those are summed in the order of the hosts, and rounded.
std::vector<uint16_t> average_by_hosts(DType dtype, const std::vector<int>& host_of, size_t count, double prescale) {
  const Kernels& set = kernels("portable");
  const bool is_fp16 = dtype == DType::kFloat16;
  const size_t hosts = static_cast<size_t>(host_of.back()) + 1;
  std::vector<Floats> sums(hosts, Floats(count));
  for (size_t r = 0; r < host_of.size(); ++r) {
    const Floats input = floats_of(dtype, random_halves(dtype, static_cast<int>(r), count));
    Floats& sum = sums[static_cast<size_t>(host_of[r])];
    const bool is_first = r == 0 || host_of[r - 1] != host_of[r];
    for (size_t i = 0; i < count; ++i) {
      const float one = input[i] * static_cast<float>(prescale);
      sum[i] = is_first ? one : sum[i] + one;
    }
  }
  Floats whole(count);
  for (size_t h = 0; h < hosts; ++h) {
    codec_round_trip(set, is_fp16 ? Codec::kScaledFp16 : Codec::kBf16, sums[h].data(), count);
    for (size_t i = 0; i < count; ++i) whole[i] = h == 0 ? sums[h][i] : whole[i] + sums[h][i];
  }
  const float postscale = static_cast<float>(1.0 / static_cast<double>(host_of.size()));
  for (float& one : whole) one *= postscale;
  std::vector<uint16_t> result(count);
  set.encode(is_fp16 ? Codec::kFp16 : Codec::kBf16, whole.data(), reinterpret_cast<std::byte*>(result.data()), count);
  return result;
}

TEST_CASE("16-bit floats on hosts of several ranks: the bits are those that determinism.md says") {
  const Environment environment{};
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const std::vector<int>& host_of : {kTwoEach, {0, 0, 0, 1}, {0, 1, 1, 2, 2, 2}}) {
      for (const size_t count : {size_t{5001}, size_t{70001}}) {
        for (const double prescale : {1.0, 0.7}) {
          CAPTURE(std::string(name(dtype)));
          CAPTURE(host_of.size());
          CAPTURE(count);
          CAPTURE(prescale);
          const std::vector<uint16_t> wanted = average_by_hosts(dtype, host_of, count, prescale);
          CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
            std::vector<uint16_t> all = random_halves(dtype, rank.rank, count);
            Request request = half_request(Kind::kAllreduce, dtype, all, all);
            request.op = ReduceOp::kAverage;
            request.prescale = prescale;
            run(rank, request);
            expect(same_halves(dtype, all, wanted), "average");
            barrier(rank.world);
          }));
        }
      }
    }
  }
}

// Products of a host reach 2^84, where float16 ends at 2^16, and their neighbours 2^-84.
TEST_CASE("float16 on hosts of several ranks: products, and the least and the largest of scaled numbers") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, [&](Rank& rank) {
    const bool is_first_host = rank.rank < 6;
    std::vector<uint16_t> all(6000);
    for (size_t i = 0; i < all.size(); ++i) all[i] = half(is_first_host == (i % 2 == 0) ? 0x1p14F : 0x1p-14F);
    std::vector<uint16_t> result(6000);
    Request request = half_request(Kind::kAllreduce, DType::kFloat16, all, result);
    request.op = ReduceOp::kProduct;
    run(rank, request);
    expect(result == std::vector<uint16_t>(6000, half(1.0F)), "2^84 times 2^-84");
    std::fill(all.begin(), all.end(), half(static_cast<float>(rank.rank + 1) * 4096.0F));
    request.op = ReduceOp::kMax;
    request.prescale = 4.0;
    request.postscale = 0.25;
    run(rank, request);
    expect(result == std::vector<uint16_t>(6000, half(49152.0F)), "the largest, by way of 196608");
    request.op = ReduceOp::kMin;
    run(rank, request);
    expect(result == std::vector<uint16_t>(6000, half(4096.0F)), "the least");
    barrier(rank.world);
  }));
}

// Integers, so that sums are exact; each root in turn, on hosts of which some may have more ranks than others.
TEST_CASE("reduce on several hosts: factors and averages, to every root, in every layout") {
  std::vector<std::vector<int>> layouts = kLayouts;
  layouts.push_back(kTwoEach);
  layouts.push_back({0, 1, 0, 2, 1, 0});
  for (const auto& host_of : layouts) {
    for (const size_t count : {size_t{3}, size_t{140001}}) {  // the second goes along a chain of hosts: 1 MiB
      CAPTURE(host_of.size());
      CAPTURE(count);
      const Environment environment{};
      CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
        const double n = static_cast<double>(rank.size);
        // The thread sanitizer sees the first and the last: each root takes it a second.
        const int step = sanitizer() == Sanitizer::kThread ? std::max(1, rank.size - 1) : 1;
        for (int root = 0; root < rank.size; root += step) {
          const ReduceOp op = root % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAverage;
          std::vector<double> all(count);
          for (size_t i = 0; i < count; ++i) all[i] = static_cast<double>(4 * (i % 1000) + 8 * (rank.rank == 0));
          const std::vector<double> given = all;
          std::vector<double> result(count, -1.0);
          Request request = request_of(Kind::kReduce, root);
          request.op = op;
          request.prescale = 0.5;
          request.postscale = op == ReduceOp::kSum ? 4.0 : 1.0;
          request.srcs = {view(all, DType::kFloat64)};
          request.dsts = {view(root % 3 == 0 ? all : result, DType::kFloat64)};  // in place, and not
          run(rank, request);
          const std::vector<double>& there = root % 3 == 0 ? all : result;
          const bool is_root = rank.rank == root;
          for (size_t i = 0; i < count; ++i) {
            const double each = static_cast<double>(4 * (i % 1000));
            const double sum = 0.5 * (n * each + 8);
            const double wanted = op == ReduceOp::kSum ? 4.0 * sum : sum / n;
            if (is_root)
              expect(std::abs(there[i] - wanted) <= 1e-12 * wanted,
                     [&] { return std::string(name(op)) + " at the root"; });
            if (!is_root) expect(there[i] == (root % 3 == 0 ? given[i] : -1.0), "memory of others is as it was");
          }
        }
        barrier(rank.world);
      }));
    }
  }
}

TEST_CASE("reducescatter on several hosts: factors and averages, in every layout") {
  std::vector<std::vector<int>> layouts = kLayouts;
  layouts.push_back(kTwoEach);
  for (const auto& host_of : layouts) {
    for (const size_t rows_each : {size_t{3}, size_t{70001}}) {  // the second round a ring: 1 MiB
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

TEST_CASE("reducescatter within a host: a slot has blocks only for members that own anything") {
  constexpr size_t kCount = size_t{1} << 20;
  Stage stage;
  stage.slot_nbytes = size_t{64} << 10;
  ReduceJob job;
  job.shape = ReduceShape::kReduceScatter;
  job.reduction.dtype = DType::kFloat32;
  job.element_count = kCount;
  for (const int owners : {1, 2, 8}) {
    CAPTURE(owners);
    job.owned.assign(8, {kCount, kCount});
    for (int i = 0; i < owners; ++i) job.owned[static_cast<size_t>(i)] = segment(kCount, owners, i);
    CHECK(rounds_of(job, stage) == kCount * sizeof(float) / stage.slot_nbytes);
  }
}

}  // namespace
}  // namespace rr::test
