// collective/plan.h, with no I/O: segments and chunks tile exactly, and the ring, recursive doubling and the tree, run
// symbolically (a value is the set of ranks that have gone into it), end with every rank's contribution exactly once.
#include "collective/plan.h"

#include <cstdint>
#include <vector>

#include "doctest/doctest.h"

namespace rr {
namespace {

TEST_CASE("segments tile the elements exactly, at aligned boundaries, in nearly equal parts") {
  for (int parts = 1; parts <= 17; ++parts) {
    for (size_t count = 0; count <= 40; ++count) {
      for (const size_t align : {1, 4, 16}) {
        size_t end = 0;
        for (int i = 0; i < parts; ++i) {
          const Range range = segment(count, parts, i, align);
          REQUIRE(range.begin == end);
          REQUIRE(range.end >= range.begin);
          REQUIRE((range.begin % align == 0 || range.begin == count));
          const size_t full = divide_up(divide_up(count, align), static_cast<size_t>(parts)) * align;
          REQUIRE(range.count() <= full);
          end = range.end;
        }
        REQUIRE(end == count);
      }
    }
  }
}

TEST_CASE("chunks tile a range exactly") {
  for (size_t begin = 0; begin <= 3; ++begin) {
    for (size_t count = 0; count <= 40; ++count) {
      for (size_t unit = 1; unit <= 41; ++unit) {
        const Range whole = {begin, begin + count};
        size_t end = begin;
        const size_t chunks = divide_up(count, unit);
        for (size_t i = 0; i < chunks; ++i) {
          const Range range = chunk(whole, unit, i);
          REQUIRE(range.begin == end);
          REQUIRE(range.count() >= 1);
          REQUIRE(range.count() <= unit);
          end = range.end;
        }
        REQUIRE(end == whole.end);
        REQUIRE(chunk(whole, unit, chunks).empty());
      }
    }
  }
}

TEST_CASE("pieces that go round a ring: every step of each, in its order, sent only after what it passes on has come") {
  for (int size = 1; size <= 9; ++size) {
    for (size_t pieces = 0; pieces <= 12; ++pieces) {
      const std::vector<RingMessage> order = ring_order(pieces, ring_steps(size));
      REQUIRE(order.size() == pieces * static_cast<size_t>(ring_steps(size)));
      std::vector<int> next(pieces, 0);
      std::vector<size_t> last(pieces, 0);
      for (size_t i = 0; i < order.size(); ++i) {
        const RingMessage& message = order[i];
        REQUIRE(message.step == next[message.piece]++);
        // Others lie between, unless there are none.
        if (message.step != 0 && message.piece >= kRingLag && message.piece + kRingLag < pieces) {
          REQUIRE(i - last[message.piece] > kRingLag);
        }
        last[message.piece] = i;
      }
    }
  }
}

TEST_CASE("a pipeline does both stages of every piece, each in order, the first so far ahead and no further") {
  for (size_t pieces = 0; pieces <= 20; ++pieces) {
    for (size_t lag = 1; lag <= 6; ++lag) {
      size_t first = 0;
      size_t second = 0;
      for (size_t index = 0; index < 2 * pieces; ++index) {
        const PipelineTurn turn = pipeline_turn(pieces, lag, index);
        REQUIRE(turn.piece == (turn.is_second ? second++ : first++));
        REQUIRE(second <= first);
        REQUIRE(first - second <= lag);
      }
      REQUIRE(first == pieces);
      REQUIRE(second == pieces);
    }
  }
  CHECK(pipeline_turn(4, 2, 2).is_second);
  CHECK(pipeline_turn(4, 2, 3).piece == 2);
}

// Bit r: rank r's contribution.
using Contributors = uint64_t;

TEST_CASE("ring: every segment meets every rank once, then travels once round the ring") {
  for (int n = 1; n <= 17; ++n) {
    const Contributors all = (Contributors{1} << n) - 1;
    std::vector<std::vector<Contributors>> held(static_cast<size_t>(n));  // [rank][segment]
    for (int r = 0; r < n; ++r) held[static_cast<size_t>(r)].assign(static_cast<size_t>(n), Contributors{1} << r);
    REQUIRE(ring_steps(n) == 2 * (n - 1));
    for (int step = 0; step < ring_steps(n); ++step) {
      const auto before = held;
      for (int r = 0; r < n; ++r) {
        const int left = (r + n - 1) % n;
        const RingStep mine = ring_step(n, r, step);
        const RingStep theirs = ring_step(n, left, step);
        REQUIRE(mine.recv == theirs.send);
        REQUIRE(mine.send != mine.recv);
        REQUIRE(mine.fold == (step < n - 1));
        Contributors& here = held[static_cast<size_t>(r)][static_cast<size_t>(mine.recv)];
        const Contributors incoming = before[static_cast<size_t>(left)][static_cast<size_t>(mine.recv)];
        if (mine.fold) {
          REQUIRE((here & incoming) == 0);  // nobody is counted twice
          here |= incoming;
        } else {
          REQUIRE(incoming == all);  // only complete segments travel in the second half
          here = incoming;
        }
      }
      if (step == n - 2) {
        for (int r = 0; r < n; ++r) REQUIRE(held[static_cast<size_t>(r)][static_cast<size_t>((r + 1) % n)] == all);
      }
    }
    for (const auto& segments : held) {
      for (const Contributors c : segments) REQUIRE(c == all);
    }
  }
}

TEST_CASE("recursive doubling: all contributions, each once, on every rank, for any number of ranks") {
  for (int n = 1; n <= 17; ++n) {
    const Doubling plan(n);
    REQUIRE(plan.power <= n);
    REQUIRE(plan.power * 2 > n);
    REQUIRE(plan.power + plan.remainder == n);
    const Contributors all = (Contributors{1} << n) - 1;
    std::vector<Contributors> held;
    std::vector<int> seen(static_cast<size_t>(plan.power), 0);
    for (int r = 0; r < n; ++r) held.push_back(Contributors{1} << r);
    for (int r = 0; r < n; ++r) {
      const int v = plan.virtual_rank(r);
      if (v < 0) {
        REQUIRE(plan.virtual_rank(r + 1) >= 0);
        held[static_cast<size_t>(r) + 1] |= held[static_cast<size_t>(r)];
      } else {
        REQUIRE(v < plan.power);
        REQUIRE(plan.real_rank(v) == r);
        ++seen[static_cast<size_t>(v)];
      }
    }
    for (const int times : seen) REQUIRE(times == 1);
    for (int distance = 1; distance < plan.power; distance *= 2) {
      const auto before = held;
      for (int v = 0; v < plan.power; ++v) {
        const size_t me = static_cast<size_t>(plan.real_rank(v));
        const size_t partner = static_cast<size_t>(plan.real_rank(v ^ distance));
        REQUIRE((before[me] & before[partner]) == 0);
        held[me] = before[me] | before[partner];
      }
    }
    for (int r = 0; r < n; ++r) {
      if (plan.virtual_rank(r) < 0) held[static_cast<size_t>(r)] = held[static_cast<size_t>(r) + 1];
      REQUIRE(held[static_cast<size_t>(r)] == all);
    }
  }
}

TEST_CASE("tree: parents and children agree, every rank hangs on the root") {
  for (int n = 1; n <= 33; ++n) {
    for (int root = 0; root < n; ++root) {
      std::vector<int> parent(static_cast<size_t>(n), -1);
      for (int r = 0; r < n; ++r) {
        for (int k = 0;; ++k) {
          const int child = tree_child(n, root, r, k);
          if (child < 0) break;
          REQUIRE(child < n);
          REQUIRE(parent[static_cast<size_t>(child)] == -1);  // one parent each
          parent[static_cast<size_t>(child)] = r;
        }
      }
      for (int r = 0; r < n; ++r) {
        REQUIRE(parent[static_cast<size_t>(r)] == tree_parent(n, root, r));
        int depth = 0;
        for (int at = r; at != root; at = tree_parent(n, root, at)) REQUIRE(++depth <= 6);  // ceil(log2 33)
      }
    }
  }
}

// The largest cases are computed by the compiler, which refuses overflow.
constexpr size_t kHuge = (size_t{1} << 31) + 5;
constexpr int kMany = 4096;

constexpr bool tiles(size_t count, int parts, size_t align) {
  size_t end = 0;
  for (int i = 0; i < parts; ++i) {
    const Range range = segment(count, parts, i, align);
    if (range.begin != end || range.end < range.begin) return false;
    end = range.end;
  }
  return end == count;
}
static_assert(tiles(kHuge, kMany, 1));
static_assert(tiles(kHuge, kMany, 16));
static_assert(tiles(size_t{1} << 62, 3, 16));
static_assert(segment(kHuge, kMany, kMany - 1).end == kHuge);
static_assert(chunk({0, kHuge}, 65536, divide_up(kHuge, 65536) - 1).end == kHuge);
static_assert(chunk({0, kHuge}, 65536, kHuge).empty());

constexpr bool ring_is_consistent(int size) {
  for (int step = 0; step < ring_steps(size); step += 97) {
    for (int rank = 0; rank < size; rank += 41) {
      const RingStep mine = ring_step(size, rank, step);
      const RingStep right = ring_step(size, (rank + 1) % size, step);
      if (mine.send < 0 || mine.send >= size || mine.recv < 0 || mine.recv >= size || right.recv != mine.send)
        return false;
    }
  }
  return true;
}
static_assert(ring_is_consistent(kMany));
static_assert(Doubling(kMany).power == kMany && Doubling(kMany - 1).power == kMany / 2);
static_assert(tree_parent(kMany, 7, 7) == -1 && tree_parent(kMany, 4095, 0) == 4095);

}  // namespace
}  // namespace rr
