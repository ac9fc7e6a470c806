// All-reduce end to end on ranks that are threads: every algorithm, many sizes and element types, exact results.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <mutex>
#include <random>

#include "doctest/doctest.h"
#include "support/loopback_links.h"
#include "support/sanitizer.h"

namespace rr::test {
namespace {

const std::vector<int> kSizes = is_sanitized() ? std::vector{1, 2, 3, 5} : std::vector{1, 2, 3, 4, 5, 8};
struct Way {
  const char* algorithm;
  const char* staging;
  const char* chunk;  // bytes
};
// Chunks of several pages let small rounds wander through a slot.
const Way kWays[] = {{"two_shot", "cached", "4096"}, {"two_shot", "streamed", "32768"},
                     {"ring", "auto", "4096"},       {"recursive_doubling", "auto", "4096"},
                     {"direct", "auto", "4096"},     {"auto", "auto", "65536"}};

constexpr size_t kLargest = 20011;

std::vector<size_t> counts(int size, DType dtype) {
  const size_t n = static_cast<size_t>(size);
  return {0, 1, n - 1, n, n + 1, 31, 1009, dtype == DType::kFloat32 ? kLargest : 4099};
}

// Element i of rank r: small enough that sums of eight are exact in every dtype and do not wrap.
constexpr size_t kPeriod = 5;
int element(int rank, size_t i) { return rank + 1 + static_cast<int>(i % kPeriod); }

void store(std::byte* at, DType dtype, int value) {
  const auto put = [at](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (dtype) {
    case DType::kFloat16: {
      int exponent = 0;
      while ((value >> (exponent + 1)) != 0) ++exponent;
      return put(static_cast<uint16_t>(value == 0 ? 0 : (exponent + 15) << 10 | ((value << (10 - exponent)) & 0x3FF)));
    }
    case DType::kBFloat16: {
      const float exact = static_cast<float>(value);
      uint32_t bits;
      std::memcpy(&bits, &exact, sizeof bits);
      return put(static_cast<uint16_t>(bits >> 16));
    }
    case DType::kFloat32:
      return put(static_cast<float>(value));
    case DType::kFloat64:
      return put(static_cast<double>(value));
    case DType::kUInt8:
      return put(static_cast<uint8_t>(value));
    case DType::kInt16:
      return put(static_cast<int16_t>(value));
    case DType::kInt64:
      return put(static_cast<int64_t>(value));
    default:
      throw std::logic_error("the test does not know this dtype");
  }
}

struct Case {
  DType dtype;
  ReduceOp op;
  size_t count;
  bool in_place;
  std::string name;  // "" = unnamed
};

int expected(const Case& c, int size, size_t i) {
  int result = element(0, i);
  for (int r = 1; r < size; ++r) {
    result = c.op == ReduceOp::kMax ? std::max(result, element(r, i)) : result + element(r, i);
  }
  return result;
}

// src and dst are given so that they may lie in registered memory.
void check_allreduce(Rank& rank, const Case& c, std::byte* src, std::byte* dst) {
  const size_t item = itemsize(c.dtype);
  if (c.in_place) dst = src;
  std::memset(dst, 0xEE, c.count * item);
  std::byte given[kPeriod][8], wanted[kPeriod][8];
  for (size_t i = 0; i < kPeriod; ++i) {
    store(given[i], c.dtype, element(rank.rank, i));
    store(wanted[i], c.dtype, expected(c, rank.size, i));
  }
  for (size_t i = 0; i < c.count; ++i) std::memcpy(src + i * item, given[i % kPeriod], item);
  Request request;
  request.kind = Kind::kAllreduce;
  request.op = c.op;
  request.srcs.resize(1);
  request.srcs[0].data = src;
  request.srcs[0].dtype = c.dtype;
  request.srcs[0].count = request.srcs[0].dims[0] = c.count;
  request.srcs[0].ndim = 1;
  request.dsts = request.srcs;
  request.dsts[0].data = dst;
  if (!c.name.empty()) request.name = &c.name;
  rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
  for (size_t i = 0; i < c.count; ++i) {
    if (std::memcmp(wanted[i % kPeriod], dst + i * item, item) == 0) continue;
    expect(false, std::string(name(c.dtype)) + " " + name(c.op) + ", element " + std::to_string(i) + " of " +
                      std::to_string(c.count) + " on rank " + std::to_string(rank.rank) + "/" +
                      std::to_string(rank.size));
  }
}

TEST_CASE("all-reduce: every algorithm, size, count and kind of memory gives the exact result") {
  for (const Way& way : kWays) {
    const std::string algorithm = way.algorithm;
    for (const int size : kSizes) {
      CAPTURE(algorithm);
      CAPTURE(size);
      const Environment environment{
          {"RINGREDUCE_ALGORITHM", algorithm}, {"RINGREDUCE_STAGING", way.staging}, {"RINGREDUCE_CHUNK", way.chunk}};
      const size_t nbytes = 2 * kLargest * sizeof(double) + 128;
      const Fd file = create_memfd("registered", nbytes * static_cast<size_t>(size));
      CHECK_NOTHROW(run_ranks(size, [&](Rank& rank) {
        const Segment segment(file.get(), 1, rank.rank, size, nbytes);
        rank.segments.add(&segment);
        std::vector<std::byte> plain(nbytes);
        const bool registered = algorithm == "direct";
        std::byte* memory = registered ? segment.own() : plain.data();
        int number = 0;
        for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kUInt8,
                                  DType::kInt16, DType::kInt64}) {
          for (const size_t count : counts(size, dtype)) {
            Case c = {dtype, number % 3 == 0 ? ReduceOp::kMax : ReduceOp::kSum, count, number % 2 == 0, ""};
            if (number++ % 4 >= 2) c.name = "tensor " + std::to_string(number % 7);
            check_allreduce(rank, c, memory, memory + nbytes / 2);
          }
        }
        barrier(rank.world);
        rank.segments.remove(&segment);
        const Stats& stats = rank.context.stats();
        if (registered) expect(stats.direct > 0, "direct all-reduces were run");
        if (algorithm == "ring") expect(stats.ring > 0, "ring all-reduces were run");
        if (algorithm == "recursive_doubling") expect(stats.recursive_doubling > 0, "doubling was run");
      }));
    }
  }
}

// Rounds 64 to 79 of a group compare (csrc/transport/stage_writer.cc); an operation of kLargest takes two.
TEST_CASE("all-reduce: rounds that compare both ways of writing into the stage give the exact result") {
  const Environment environment{
      {"RINGREDUCE_ALGORITHM", "two_shot"}, {"RINGREDUCE_STAGING", "auto"}, {"RINGREDUCE_CHUNK", "65536"}};
  CHECK_NOTHROW(run_ranks(3, [](Rank& rank) {
    std::vector<std::byte> memory(2 * kLargest * sizeof(double));
    for (int k = 0; k < 100; ++k) {
      const Case c = {DType::kFloat32, ReduceOp::kSum, kLargest, false, ""};
      check_allreduce(rank, c, memory.data(), memory.data() + memory.size() / 2);
    }
    barrier(rank.world);
  }));
}

TEST_CASE("all-reduce on several hosts gives the exact result") {
  for (const char* algorithm : {"auto", "ring", "recursive_doubling"}) {
    for (const auto& host_of : kLayouts) {
      CAPTURE(algorithm);
      CAPTURE(host_of.size());
      const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
      std::atomic<uint64_t> sent{0};  // not by every rank, where hosts have unequal numbers
      CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
        std::vector<std::byte> memory(2 * kLargest * sizeof(double));
        int number = 0;
        for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kUInt8,
                                  DType::kInt16, DType::kInt64}) {
          for (const size_t count : counts(rank.size, dtype)) {
            Case c = {dtype, number % 3 == 0 ? ReduceOp::kMax : ReduceOp::kSum, count, number % 2 == 0, ""};
            if (number++ % 4 >= 2) c.name = "tensor " + std::to_string(number % 7);
            check_allreduce(rank, c, memory.data(), memory.data() + memory.size() / 2);
          }
        }
        barrier(rank.world);
        const Stats& stats = rank.context.stats();
        sent += stats.bytes_on_wire;
        if (std::string(algorithm) == "auto") expect(stats.hierarchical > 0, "two levels were run");
        if (std::string(algorithm) == "ring") expect(stats.ring > 0, "the ring was run");
      }));
      CHECK(sent > 0);
    }
  }
}

// Sums of random numbers depend on the order of the additions.
TEST_CASE("all-reduce: all ranks get the same bits, and all algorithms in rank order the same") {
  const size_t count = 30011;
  std::vector<float> in_rank_order;
  for (const char* algorithm : {"two_shot", "direct", "ring", "recursive_doubling"}) {
    CAPTURE(algorithm);
    const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
    const int size = 5;
    const Fd file = create_memfd("registered", count * sizeof(float) * size);
    std::vector<std::vector<float>> results(size);
    run_ranks(size, [&](Rank& rank) {
      const Segment segment(file.get(), 1, rank.rank, size, count * sizeof(float));
      rank.segments.add(&segment);
      std::mt19937 random(static_cast<unsigned>(rank.rank));
      std::normal_distribution<float> normal;
      std::vector<float> values(count);
      for (float& value : values) value = normal(random);
      std::memcpy(segment.own(), values.data(), count * sizeof(float));
      Request request;
      request.kind = Kind::kAllreduce;
      request.srcs = request.dsts = {view(values, DType::kFloat32)};
      request.srcs[0].data = request.dsts[0].data = segment.own();
      rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
      std::memcpy(values.data(), segment.own(), count * sizeof(float));
      results[static_cast<size_t>(rank.rank)] = values;
      barrier(rank.world);
      rank.segments.remove(&segment);
    });
    for (const auto& result : results) CHECK(std::memcmp(result.data(), results[0].data(), count * sizeof(float)) == 0);
    if (std::string(algorithm) == "two_shot") in_rank_order = results[0];
    if (std::string(algorithm) == "direct") CHECK(results[0] == in_rank_order);
  }
}

TEST_CASE("all-reduce: a grouped operation of tensors that cut across chunks") {
  for (const char* algorithm : {"two_shot", "ring", "recursive_doubling"}) {
    CAPTURE(algorithm);
    const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
    const auto check = [](Rank& rank) {
      std::vector<Floats> tensors;
      Request request;
      request.kind = Kind::kAllreduce;
      for (const size_t count : {5, 0, 4099, 1, 1023, 0, 70001}) {
        tensors.emplace_back(count);
        for (size_t i = 0; i < count; ++i) tensors.back()[i] = static_cast<float>(element(rank.rank, i));
      }
      for (Floats& tensor : tensors) request.srcs.push_back(view(tensor, DType::kFloat32));
      request.dsts = request.srcs;
      rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
      const Case c = {DType::kFloat32, ReduceOp::kSum, 0, true, ""};
      for (const Floats& tensor : tensors) {
        for (size_t i = 0; i < tensor.size(); ++i) {
          expect(tensor[i] == static_cast<float>(expected(c, 3, i)), "element of a grouped all-reduce");
        }
      }
    };
    CHECK_NOTHROW(run_ranks(3, check));
    CHECK_NOTHROW(run_hosts({0, 1, 1}, check));
  }
}

// A ring takes float32 only; which tensor is the first decides whether one is chosen.
TEST_CASE("all-reduce: a grouped operation of several dtypes on several hosts") {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kInt16};
  for (const char* algorithm : {"auto", "ring", "recursive_doubling"}) {
    for (size_t first = 0; first < std::size(kTypes); ++first) {
      CAPTURE(algorithm);
      CAPTURE(first);
      const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
      const auto check = [&](Rank& rank) {
        constexpr size_t kCount = 5003;
        std::vector<std::vector<std::byte>> tensors;
        Request request;
        request.kind = Kind::kAllreduce;
        for (size_t at = 0; at < std::size(kTypes); ++at) {
          const DType dtype = kTypes[(first + at) % std::size(kTypes)];
          std::vector<std::byte>& tensor = tensors.emplace_back(kCount * itemsize(dtype));
          for (size_t i = 0; i < kCount; ++i) store(&tensor[i * itemsize(dtype)], dtype, element(rank.rank, i));
          request.srcs.push_back(view(tensor, DType::kUInt8));
          request.srcs.back().dtype = dtype;
          request.srcs.back().count = request.srcs.back().dims[0] = kCount;
        }
        request.dsts = request.srcs;
        rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
        for (const TensorView& tensor : request.dsts) {
          const size_t item = itemsize(tensor.dtype);
          const Case c = {tensor.dtype, ReduceOp::kSum, 0, true, ""};
          std::byte wanted[8];
          for (size_t i = 0; i < kCount; ++i) {
            store(wanted, tensor.dtype, expected(c, 3, i));
            expect(std::memcmp(wanted, tensor.data + i * item, item) == 0, "element of a group of several dtypes");
          }
        }
      };
      CHECK_NOTHROW(run_hosts({0, 1, 1}, check));
      CHECK_NOTHROW(run_ranks(3, check));
    }
  }
}

// Of +0 and -0, and of two NaNs, a kernel takes one: which one is a matter of the order of its operands.
TEST_CASE("all-reduce: all ranks have the same zeros and NaNs") {
  constexpr size_t kCount = 8000;
  for (const char* algorithm : {"auto", "two_shot", "ring", "recursive_doubling"}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
      for (const int size : {2, 3, 4, 6}) {
        CAPTURE(algorithm);
        CAPTURE(name(op));
        CAPTURE(size);
        const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
        std::vector<std::vector<float>> results(static_cast<size_t>(size));
        const auto reduce = [&](Rank& rank) {
          const float value = op == ReduceOp::kSum ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
          std::vector<float>& mine = results[static_cast<size_t>(rank.rank)];
          mine.assign(kCount, std::copysign(value, rank.rank % 2 == 0 ? 1.0F : -1.0F));
          Request request = request_of(Kind::kAllreduce);
          request.op = op;
          request.srcs = {view(mine, DType::kFloat32)};
          request.dsts = request.srcs;
          run(rank, request);
        };
        const auto check = [&] {
          for (const auto& result : results) {
            CHECK(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)) == 0);
          }
        };
        run_ranks(size, reduce);
        check();
        std::vector<int> host_of;
        for (int r = 0; r < size; ++r) host_of.push_back(r);
        run_hosts(host_of, reduce);
        check();
      }
    }
  }
}

// As those that are left when all others have joined.
TEST_CASE("all-reduce: one rank's own values are scaled, and logical ones are 0 and 1") {
  for (const char* algorithm : {"auto", "two_shot", "ring", "recursive_doubling"}) {
    CAPTURE(algorithm);
    const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}};
    const auto check = [&](Rank& rank) {
      constexpr size_t kCount = 1 << 19;
      const auto reduced = [&](ReduceOp op, double postscale) {
        std::vector<int32_t> values(kCount, 6);
        Request request;
        request.kind = Kind::kAllreduce;
        request.op = op;
        request.postscale = postscale;
        request.srcs = request.dsts = {view(values, DType::kInt32)};
        run(rank, request);
        expect(std::count(values.begin(), values.end(), values[0]) == static_cast<std::ptrdiff_t>(kCount), "all alike");
        return values[0];
      };
      if (rank.rank == 0) {
        expect(reduced(ReduceOp::kLogicalAnd, 1.0) == 1, "logical and");
        expect(reduced(ReduceOp::kLogicalOr, 1.0) == 1, "logical or");
        expect(reduced(ReduceOp::kSum, 0.5) == 3, "scaled sum");
        expect(reduced(ReduceOp::kSum, 1.0) == 6, "sum");
      }
      if (rank.size > 1) rank.world.join(nullptr);
    };
    CHECK_NOTHROW(run_ranks(1, check));
    CHECK_NOTHROW(run_hosts({0, 1}, check));
    CHECK_NOTHROW(run_hosts({0, 0, 1}, check));
  }
}

TEST_CASE("tensors of a group that share memory are refused, those that touch are not") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    Floats data(30, 1.0F);
    Floats outputs(20, 0.0F);
    const auto part = [](Floats& of, size_t begin, size_t count) {
      TensorView one = view(of, DType::kFloat32);
      one.data += begin * sizeof(float);
      one.dims[0] = one.count = count;
      return one;
    };
    const auto sum_of = [&](std::vector<TensorView> srcs, std::vector<TensorView> dsts) {
      Request request;
      request.kind = Kind::kAllreduce;
      request.srcs = std::move(srcs);
      request.dsts = std::move(dsts);
      rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
    };
    const std::vector<TensorView> touching = {part(data, 10, 10), part(data, 0, 10), part(data, 20, 10)};
    sum_of(touching, touching);
    expect(data.front() == 2 && data.back() == 2, "in place");
    const std::vector<TensorView> inputs = {part(data, 0, 10), part(data, 5, 10)};  // read only: these may overlap
    sum_of(inputs, {part(outputs, 0, 10), part(outputs, 10, 10)});
    expect(outputs.front() == 4 && outputs.back() == 4, "out of place");
    for (const auto& [srcs, dsts] :
         {std::pair(inputs, inputs), std::pair(inputs, std::vector{part(outputs, 0, 10), part(outputs, 9, 10)}),
          std::pair(inputs, std::vector{part(outputs, 0, 10), part(data, 2, 10)})}) {
      expect_contains(raised<InvalidArgumentError>([&, &from = srcs, &to = dsts] { sum_of(from, to); }),
                      "tensors 0 and 1 share memory");
    }
  }));
}

}  // namespace
}  // namespace rr::test
