// How the threads of a launch go through a table's pieces.
#pragma once

#include "gpu/kernels/kernel_memory.h"

namespace rr::kernel {

// One thread's place in the launch.
struct Where {
  unsigned block;
  unsigned thread;
};

// The item that a piece belongs to, at or after item `from`. Every item has a piece at least, so it is at most as many
// items ahead as the piece is ahead of that item's end.
template <class Item>
RR_HD uint32_t item_of(const Item* items, uint32_t nitems, uint32_t from, uint64_t piece) {
  const uint64_t next = items[from + 1].extent.first;
  if (piece < next) return from;
  uint32_t low = from + 1;  // items[low].first <= piece < items[high].first
  const uint64_t reach = piece - next + 1;
  uint32_t high = reach < nitems - low ? low + static_cast<uint32_t>(reach) : nitems;
  RR_NO_UNROLL
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (items[middle].extent.first <= piece) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls work(item, groups) for all that the thread has to do: kAtOnce groups where these are one access each. What the
// table has is read again each time: that is cheaper than registers.
template <class Item, unsigned kElements, unsigned kAtOnce, class Work>
RR_HD void walk(const Table& table, const Where& where, const Work& work) {
  uint32_t at = table.start(where.block);
  uint32_t left = table.share(where.block);  // of the block's pieces; each warp takes every kWarps-th
  const uint32_t warp = where.thread / kWarpSize;
  if (left <= warp) return;
  left -= warp;
  RR_NO_UNROLL
  while (true) {
    const Item* const items = table.items<Item>();
    const unsigned lane = where.thread % kWarpSize;
    const uint64_t piece = table.before(where.block + 1) - left;
    at = item_of(items, table.head().nitems, at, piece);
    const Item& item = items[at];
    constexpr uint32_t kAhead = (kAtOnce - 1) * kWarps;
    WholeGroups<kElements, kAtOnce> whole;
    uint32_t done = kWarps;
    if (kAhead < left && piece + kAhead < items[at + 1].extent.first && whole.find(item.extent, piece, lane)) {
      work(item, whole);
      done += kAhead;
    } else {
      AnyGroup<kElements> any;
      any.find(item.extent, piece, lane);
      if (any.begin < any.end) work(item, any);
    }
    if (left <= done) return;
    left -= done;
  }
}

}  // namespace rr::kernel
