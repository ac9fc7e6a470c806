// All-reduces whose elements travel between hosts in a codec, on hosts of one rank and of several.
#include <cmath>
#include <cstring>
#include <mutex>

#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

constexpr Codec kCodecs[] = {Codec::kFp16, Codec::kBf16, Codec::kInt8};
const std::vector<std::vector<int>> kHosts = {{0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1, 1, 2}};
// In a request slot and in an eager buffer, where no codec is used; in one piece, with a short block; so long that it
// would go round a ring without a codec.
constexpr size_t kCounts[] = {7, 300, 5003, 300007};
constexpr size_t kEncoded = 5003;  // from here on

void allreduce(Rank& rank, Floats& data, Codec codec, ReduceOp op, double postscale = 1.0) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.op = op;
  request.codec = codec;
  request.postscale = postscale;
  request.srcs = request.dsts = {view(data, DType::kFloat32)};
  rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
}

void wrong(const Floats& data, size_t i, double wanted) {
  throw std::runtime_error("element " + std::to_string(i) + " of " + std::to_string(data.size()) + " is " +
                           std::to_string(data[i]) + ", not " + std::to_string(wanted));
}

// Between -1 and 1, of all bits.
float random_element(int rank, size_t i) {
  uint64_t x = (static_cast<uint64_t>(rank) << 40 ^ i) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<float>(static_cast<int32_t>(x ^ (x >> 31))) * 0x1p-31f;
}

// What every codec and every partial sum keeps as it is: whole numbers of few bits, and for int8 0 or 127 in steps of a
// power of two.
float exact_element(Codec codec, int rank, size_t i) {
  if (codec == Codec::kInt8) return static_cast<float>(i % 3 == 0 ? 0 : i % 3 == 1 ? 127 : -127);
  return static_cast<float>(static_cast<size_t>(rank + 1) * (i % 4));
}

TEST_CASE("codecs between hosts: what they can represent arrives as it is, every element in its place") {
  const Environment environment{};
  for (const auto& host_of : kHosts) {
    for (const Codec codec : kCodecs) {
      CAPTURE(host_of.size());
      CAPTURE(std::string(name(codec)));
      CHECK_NOTHROW(run_hosts(host_of, [codec](Rank& rank) {
        for (const size_t count : kCounts) {
          Floats data(count);
          for (size_t i = 0; i < count; ++i) data[i] = exact_element(codec, rank.rank, i);
          allreduce(rank, data, codec, ReduceOp::kSum, 0.5);
          for (size_t i = 0; i < count; ++i) {
            float sum = 0;
            for (int r = 0; r < rank.size; ++r) sum += exact_element(codec, r, i);
            if (data[i] != 0.5f * sum) wrong(data, i, 0.5f * sum);
          }
          if (codec == Codec::kInt8) continue;
          for (size_t i = 0; i < count; ++i) data[i] = exact_element(codec, rank.rank, i);
          allreduce(rank, data, codec, ReduceOp::kMax);
          for (size_t i = 0; i < count; ++i) {
            const float largest = exact_element(codec, rank.size - 1, i);
            if (data[i] != largest) wrong(data, i, largest);
          }
        }
      }));
    }
  }
}

// The most that an element of the sum may be off: each host's sum is rounded, and the result.
double tolerance(Codec codec, int ranks) {
  const double step = codec == Codec::kInt8 ? 2 * 0.501 / 127 : codec == Codec::kFp16 ? 0x1p-10 : 0x1p-7;
  return 1.01 * step * ranks;
}

TEST_CASE("codecs between hosts: all ranks get the same bits, near the sum, and what was encoded once stays as it is") {
  const Environment environment{};
  for (const auto& host_of : kHosts) {
    for (const Codec codec : kCodecs) {
      CAPTURE(host_of.size());
      CAPTURE(std::string(name(codec)));
      for (const size_t count : kCounts) {
        CAPTURE(count);
        std::mutex mutex;
        Floats first;
        CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
          Floats data(count);
          for (size_t i = 0; i < count; ++i) data[i] = random_element(rank.rank, i);
          allreduce(rank, data, codec, ReduceOp::kSum);
          for (size_t i = 0; i < count; ++i) {
            double sum = 0;
            for (int r = 0; r < rank.size; ++r) sum += static_cast<double>(random_element(r, i));
            if (std::abs(static_cast<double>(data[i]) - sum) > tolerance(codec, rank.size)) wrong(data, i, sum);
          }
          const std::lock_guard lock(mutex);
          if (first.empty()) first = data;
          expect(std::memcmp(data.data(), first.data(), count * sizeof(float)) == 0, "the same bits on all ranks");
        }));
        // The int8 of a slice is not that of the whole, whose blocks begin elsewhere.
        if (count < kEncoded || codec == Codec::kInt8) continue;
        Floats again = first;
        codec_round_trip(kernels("portable"), codec, again.data(), count);
        CHECK(again == first);
      }
    }
  }
}

TEST_CASE("codecs between hosts: fp16 holds an average whose sum it does not hold, at every length") {
  const Environment environment{};
  for (const auto& host_of : {std::vector<int>{0, 1, 2}, {0, 1, 1, 2, 3}}) {
    CAPTURE(host_of.size());
    CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
      for (const size_t count : kCounts) {
        Floats data(count, 30000.0F);
        allreduce(rank, data, Codec::kFp16, ReduceOp::kAverage);
        for (size_t i = 0; i < count; ++i) {
          if (data[i] != 30000.0F) wrong(data, i, 30000.0);
        }
      }
    }));
  }
}

double bytes_sent(const std::vector<int>& host_of, Codec codec) {
  std::atomic<uint64_t> sent{0};
  CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
    Floats data(300007, 1.0f);
    allreduce(rank, data, codec, ReduceOp::kAverage);
    barrier(rank.world);
    sent += rank.context.stats().bytes_on_wire;
  }));
  return static_cast<double>(sent);
}

TEST_CASE("codecs between hosts: fewer bytes leave the host, whatever algorithm is forced") {
  for (const auto& host_of : kHosts) {
    CAPTURE(host_of.size());
    const Environment usual{};
    const double all = bytes_sent(host_of, Codec::kNone);
    for (const char* algorithm : {"auto", "ring", "recursive_doubling"}) {
      CAPTURE(std::string(algorithm));
      const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
      CHECK(bytes_sent(host_of, Codec::kFp16) < 0.51 * all);
      CHECK(bytes_sent(host_of, Codec::kBf16) < 0.51 * all);
      CHECK(bytes_sent(host_of, Codec::kInt8) < 0.27 * all);
    }
  }
}

}  // namespace
}  // namespace rr::test
