// How a list becomes a table: shares of blocks, lists of any mixture of sizes, more than 2^31 elements.
#include <doctest/doctest.h>

#include "gpu/cuda_operands.h"
#include "gpu/kernels/kernel_walk.h"

using namespace rr_test;

TEST_CASE("one huge tensor among 500 tiny ones: all arrive, and every block has the same share") {
  std::mt19937 random(17);
  std::vector<Bytes> inputs;
  std::vector<Operand> srcs, dsts;
  std::vector<DevicePart> parts;
  for (size_t i = 0; i < 501; ++i) {
    const size_t count = i == 250 ? (size_t{1} << 20) + 3 : random() % 300;
    inputs.push_back(random_input(DType::kFloat32, count, static_cast<uint32_t>(i)));
    srcs.emplace_back(inputs.back(), count * 4, i % 3 * 4);
    dsts.emplace_back(count * 4, i % 2 * 4);
    parts.push_back({srcs.back().data(), dsts.back().data(), count});
  }
  const Launch launch = rr::move_launch(parts, DType::kFloat32, DType::kFloat32, 1.0, 132);
  CHECK(launch.grid == 132 * rr::kernel::kMoveBlocks);
  run(launch);
  for (size_t i = 0; i < parts.size(); ++i) {
    CHECK(std::equal(inputs[i].begin(), inputs[i].end(), dsts[i].at()));
    CHECK(dsts[i].is_guarded());
  }
  CHECK(rr::move_launch(parts, DType::kFloat32, DType::kFloat32, 1.0, 132).table == launch.table);

  const auto& head = *reinterpret_cast<const rr::kernel::TableHead*>(launch.table.data());
  const rr::kernel::Table table{launch.table.data()};
  CHECK(head.share > 0);
  for (unsigned block = 0; block < launch.grid; ++block) {
    CHECK(table.before(block + 1) - table.before(block) - head.share <= 1);
  }
  CHECK(table.before(launch.grid) == table.items<rr::kernel::MoveItem>()[head.nitems].extent.first);
}

TEST_CASE("elements past 2^31: every block walks its own, to the last one") {
  // Nothing is allocated: the walk is looked at, not what it would load. 2^33 + 5 floats after 2^32 - 1 of them.
  constexpr uint64_t kFirst = (uint64_t{1} << 32) - 1, kSecond = (uint64_t{1} << 33) + 5;
  const auto at = [](uint64_t address) { return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address)); };
  const uint64_t base = uint64_t{1} << 44;
  const Launch launch =
      rr::move_launch({{at(base), at(base << 1), kFirst}, {at(base + 8), at((base << 1) + 8), kSecond}},
                      DType::kFloat32, DType::kFloat32, 0.5, 132);
  const rr::kernel::Table table{launch.table.data()};
  const auto* const items = table.items<rr::kernel::MoveItem>();
  CHECK(items[0].extent.is_contiguous());
  CHECK(items[1].extent.shift() == 2);
  for (const unsigned block : {0u, 1u, launch.grid / 3, launch.grid / 2, launch.grid - 1}) {
    uint64_t elements = 0, sum = 0, lowest = UINT64_MAX, highest = 0;
    for (unsigned thread = 0; thread < launch.block; ++thread) {
      const auto count_them = [&](const rr::kernel::MoveItem& item, const auto& groups) {
        const uint64_t before = item.src == items[0].src ? 0 : kFirst;
        const auto see = [&](int64_t index, int64_t begin, int64_t end) {
          for (int64_t i = index + begin; i < index + end; ++i) {
            const uint64_t element = before + static_cast<uint64_t>(i);
            elements += 1;
            sum += element;
            lowest = std::min(lowest, element);
            highest = std::max(highest, element);
          }
        };
        if constexpr (std::decay_t<decltype(groups)>::kGroups == 1) {
          see(groups.index, groups.begin, groups.end);
        } else {
          for (int64_t k = 0; k < 4; ++k) see(groups.index + k * launch.block * 4, 0, 4);
        }
      };
      rr::kernel::walk<rr::kernel::MoveItem, 4, 4>(table, {block, thread}, count_them);
    }
    // Piece p of an item has its elements 128 p - shift to 128 p - shift + 127, as far as there are any.
    const auto begin_of = [&](uint64_t piece) {
      const uint64_t second = items[1].extent.first;
      if (piece < second) return piece * 128;
      return kFirst + std::min(kSecond, piece == second ? 0 : (piece - second) * 128 - 2);
    };
    const uint64_t begin = begin_of(table.before(block)), end = begin_of(table.before(block + 1));
    INFO("block ", block);
    CHECK(elements == end - begin);
    CHECK(lowest == begin);
    CHECK(highest == end - 1);
    CHECK(sum == (end - begin) * begin + (end - begin) * (end - begin - 1) / 2);
  }
  CHECK(table.before(launch.grid) == items[2].extent.first);
}

TEST_CASE("nothing to do is no launch, and every kernel that a launch names is there") {
  CHECK(rr::move_launch({}, DType::kFloat32, DType::kFloat16, 1.0, 132).grid == 0);
  CHECK(rr::fold_launch({{{nullptr}, {nullptr}, 0}}, Reduction(), 132).grid == 0);
  CHECK(rr::encode_launch(rr::Codec::kInt8, nullptr, nullptr, 0, 132).grid == 0);
  CHECK(rr::kernel_names().size() > 40);
  rr::LaunchArgument none;
  void* params[] = {&none};
  CHECK_FALSE(rr::run_on_host("rr_there_is_no_such_kernel", 1, rr::kernel::kBlock, params));
}
