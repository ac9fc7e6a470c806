// Who owns which elements, and what moves when. Arithmetic only: no memory, no I/O, no overflow below 2^63 elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rounding.h"

namespace rr {

struct Range {
  size_t begin = 0;
  size_t end = 0;
  constexpr size_t count() const { return end - begin; }
  constexpr bool empty() const { return begin == end; }
};

// Segment `index` of `parts` of count elements: consecutive, tiling, boundaries at multiples of `align` elements (so
// that no two ranks write one cache line). Sizes differ by at most align; trailing segments may be short or empty.
constexpr Range segment(size_t count, int parts, int index, size_t align = 1) {
  const size_t blocks = divide_up(count, align);
  const size_t n = static_cast<size_t>(parts);
  const size_t i = static_cast<size_t>(index);
  const size_t base = blocks / n;
  const size_t extra = blocks % n;
  const size_t first = i * base + std::min(i, extra);
  const size_t last = first + base + (i < extra ? 1 : 0);
  return {std::min(first * align, count), std::min(last * align, count)};
}

// Chunk `index` of a range cut into pieces of at most `unit` elements.
constexpr Range chunk(Range whole, size_t unit, size_t index) {
  const size_t begin = std::min(whole.begin + index * unit, whole.end);
  return {begin, std::min(begin + unit, whole.end)};
}

// The ring (Patarasuk and Yuan 2009): 2(N-1) steps. In steps 0..N-2 (reduce-scatter) every rank sends one segment to
// its right neighbour and folds the one that comes from the left into its own; after them rank r holds segment
// (r+1) mod N complete. In steps N-1..2N-3 (all-gather) complete segments travel once round the ring.
// Every rank sends 2(N-1)/N of the data: the least possible.
struct RingStep {
  int send = 0;  // segment pushed to the right
  int recv = 0;  // segment that comes from the left
  bool fold = false;
};

constexpr int ring_steps(int size) { return 2 * (size - 1); }
constexpr int ring_scatter_steps(int size) { return size - 1; }
// The rank that holds a segment complete after these.
constexpr int ring_keeper(int size, int segment) { return (segment + size - 1) % size; }

constexpr RingStep ring_step(int size, int rank, int step) {
  const bool fold = step < size - 1;
  const int s = fold ? step : step - (size - 1);
  const int lead = fold ? rank : rank + 1;
  const int send = ((lead - s) % size + size) % size;
  return {send, (send + size - 1) % size, fold};
}

// What a rank sends when it has several pieces, each of which goes round by itself; also what it receives, as all keep
// to it. A piece's next step comes kRingLag pieces later, when the last one has long been there. Example, 3 pieces,
// lag 2, (piece, step): (0, 0) (1, 0) (0, 1) (2, 0) (1, 1) (0, 2) (2, 1) ...
struct RingMessage {
  size_t piece = 0;
  int step = 0;
};

inline constexpr size_t kRingLag = 2;

inline std::vector<RingMessage> ring_order(size_t pieces, int all_steps) {
  const size_t steps = static_cast<size_t>(all_steps);
  std::vector<RingMessage> order;
  order.reserve(pieces * steps);
  if (steps == 0) return order;
  for (size_t turn = 0; turn < pieces + (steps - 1) * kRingLag; ++turn) {
    for (size_t step = std::min(steps - 1, turn / kRingLag) + 1; step-- > 0;) {
      const size_t piece = turn - step * kRingLag;
      if (piece < pieces) order.push_back({piece, static_cast<int>(step)});
    }
  }
  return order;
}

// A pipeline of two stages over pieces, whose first stage is up to `lag` pieces ahead: what comes in turn `index` of
// 2 * pieces. Example, 4 pieces, lag 2: first 0, first 1, second 0, first 2, second 1, first 3, second 2, second 3.
struct PipelineTurn {
  size_t piece = 0;
  bool is_second = false;
};

constexpr PipelineTurn pipeline_turn(size_t pieces, size_t most, size_t index) {
  const size_t lag = std::min(most, pieces);
  if (index < lag) return {index, false};
  const size_t turn = index - lag;
  if (turn >= 2 * (pieces - lag)) return {turn - (pieces - lag), true};
  return turn % 2 == 0 ? PipelineTurn{turn / 2, true} : PipelineTurn{lag + turn / 2, false};
}

// Recursive doubling for any N (Thakur, Rabenseifner and Gropp 2005): with P the largest power of two <= N, the first
// 2(N-P) ranks pair up and the even one of each pair hands its data to the odd one and waits for the result; P ranks
// then exchange with the partner at distance 1, 2, 4, ...
struct Doubling {
  int power = 1;      // P
  int remainder = 0;  // N - P
  constexpr explicit Doubling(int size) {
    while (power * 2 <= size) power *= 2;
    remainder = size - power;
  }
  // Virtual rank among the P, or -1 for a rank that only hands over.
  constexpr int virtual_rank(int rank) const {
    if (rank >= 2 * remainder) return rank - remainder;
    return rank % 2 == 0 ? -1 : rank / 2;
  }
  constexpr int real_rank(int virtual_rank) const {
    return virtual_rank < remainder ? 2 * virtual_rank + 1 : virtual_rank + remainder;
  }
};

// Binomial tree rooted at `root`: parent of a rank, -1 for the root. Children of relative rank v are v + 2^k for the
// 2^k below v's lowest set bit (all of them for the root).
constexpr int tree_parent(int size, int root, int rank) {
  const int v = (rank - root + size) % size;
  return v == 0 ? -1 : ((v & (v - 1)) + root) % size;
}

// Child number k of a rank, or -1 when there is none.
constexpr int tree_child(int size, int root, int rank, int k) {
  const int v = (rank - root + size) % size;
  const int bit = 1 << k;
  if (v != 0 && bit >= (v & -v)) return -1;
  return v + bit < size ? (v + bit + root) % size : -1;
}

}  // namespace rr
