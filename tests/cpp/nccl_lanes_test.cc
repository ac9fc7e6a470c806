// NCCL's kernels wait for peers while they run, so those of one group must not wait behind those of another.

#include <doctest/doctest.h>

#include "nccl_fake.h"

namespace rr::test {
namespace {

std::unique_ptr<Algorithm> sum_of(const std::shared_ptr<NcclTeams>& teams, const Team& team, std::byte* data,
                                  size_t count) {
  const Reduction sum = {DType::kFloat32, ReduceOp::kSum, 1, 1, team.size()};
  return nccl_road(teams, team, nccl_allreduce({{sum, {{data, data, count}}}}, nullptr));
}

std::vector<uint8_t> threes(size_t count, float factor) {
  std::vector<uint8_t> bytes(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const float value = factor * static_cast<float>(i + 3);
    std::memcpy(&bytes[i * sizeof value], &value, sizeof value);
  }
  return bytes;
}

TEST_CASE("nccl: two groups whose operations come in another order on each rank") {
  constexpr size_t kCount = 1000;
  constexpr int kRounds = 3;
  FakeNccl fake;
  NcclWires wires(2);
  CHECK_NOTHROW(run_threads(2, [&](int r) {
    NcclRank rank(fake.library, wires, r, 2);
    const std::vector<std::shared_ptr<NcclTeams>> groups = {
        rank.teams, std::make_shared<NcclTeams>(fake.library, rank.device, rank.log, "the other group")};
    const Team team = rank.everyone();
    std::vector<std::byte*> data;
    for (int g = 0; g < 2; ++g) {
      data.push_back(rank.put(threes(kCount, static_cast<float>(1 + r + 10 * g))));
      finish(*sum_of(groups[static_cast<size_t>(g)], team, data.back(), kCount));  // makes the communicator
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::unique_ptr<Algorithm>> sums;
      for (const size_t g : r == 0 ? std::vector<size_t>{0, 1} : std::vector<size_t>{1, 0}) {
        sums.push_back(sum_of(groups[g], team, data[g], kCount));
        bool launched = false;
        wait_for([&] { return launched = launched || sums.back()->step() == Step::kProgress; });
      }
      for (const auto& sum : sums) finish(*sum);
    }
    // 1 + 2 and 11 + 12 of each element, then doubled in every round.
    expect(NcclRank::get(data[0], kCount * 4) == threes(kCount, 3 * 8), "the first group's sum");
    expect(NcclRank::get(data[1], kCount * 4) == threes(kCount, 23 * 8), "the second group's sum");
    for (const auto& teams : groups) teams->close(60);
  }));
  CHECK(fake.counts().communicators == 0);
  CHECK(fake.counts().misuses == 0);
  CHECK(fake.counts().aborted == 0);
}

}  // namespace
}  // namespace rr::test
