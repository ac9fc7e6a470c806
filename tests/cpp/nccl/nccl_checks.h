// What tests of the NCCL path share: numbers whose sums are exact, ranks that are threads, what has to be left.
#pragma once

#include "doctest/doctest.h"
#include "fakes/fake_nccl.h"
#include "gpu/gpu_path_checks.h"

namespace rr::test {

// Small whole numbers that depend on rank and place, so that sums are exact in any order and type.
inline Bytes numbers(DType dtype, size_t count, int rank, size_t first = 0) {
  Bytes bytes(count * itemsize(dtype));
  for (size_t i = 0; i < count; ++i) {
    const int value = static_cast<int>((first + i) % 5) + rank + 1;
    const auto put = [&](auto number) { std::memcpy(&bytes[i * itemsize(dtype)], &number, sizeof number); };
    switch (dtype) {
      case DType::kFloat16:
      case DType::kBFloat16:
        put(rr_test::encode(dtype == DType::kFloat16 ? rr_test::kFp16 : rr_test::kBf16, static_cast<float>(value)));
        break;
      case DType::kFloat32:
        put(static_cast<float>(value));
        break;
      case DType::kFloat64:
        put(static_cast<double>(value));
        break;
      case DType::kInt8:
      case DType::kUInt8:
        put(static_cast<uint8_t>(value));
        break;
      case DType::kInt32:
      case DType::kUInt32:
        put(static_cast<uint32_t>(value));
        break;
      default:
        put(static_cast<uint64_t>(value));
    }
  }
  return bytes;
}

// Runs body(rank) on `size` ranks, each on a thread of its own, and closes what they have made.
inline void run_nccl(FakeNccl& fake, int size, const std::function<void(NcclRank&)>& body) {
  NcclWires loopback(size);
  run_threads(size, [&](int r) {
    NcclRank rank(fake.library, loopback, r, size);
    body(rank);
    rank.teams->close(60);  // a slow machine is no reason to abort
  });
}

// What is left once everybody has gone.
inline void check_clean(const FakeNccl& fake, int aborted = 0) {
  const FakeNcclCounts counts = fake.counts();
  CHECK(counts.communicators == 0);
  CHECK(counts.operations == 0);
  CHECK(counts.open_groups == 0);
  CHECK(counts.misuses == 0);
  CHECK(counts.aborted == aborted);
}

// An all-reduce in place.
inline std::unique_ptr<Algorithm> sum_of(NcclRank& rank, const Team& team, std::byte* data, size_t count) {
  const Reduction sum = {DType::kFloat32, ReduceOp::kSum, 1, 1, rank.size};
  return nccl_path(rank.teams, team, nccl_allreduce({{sum, {{data, data, count}}}}, nullptr));
}

}  // namespace rr::test
