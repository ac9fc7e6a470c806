// The staging area of a group on one host: per rank one line of progress counters and a ring of slots that every rank
// can read. Single writer per line. Counters only grow, over the life of the group: every rank runs the same rounds in
// the same order, so "round n of the group" means the same everywhere and nothing is ever reset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rr {

struct alignas(64) Progress {
  std::atomic<uint64_t> put;   // rounds whose input this rank has staged
  std::atomic<uint64_t> fold;  // rounds whose segment this rank has reduced
  std::atomic<uint64_t> take;  // rounds this rank has finished with
};

struct Stage {
  Progress* progress = nullptr;  // [rank]
  std::byte* slots = nullptr;    // [rank][slot]
  size_t slot_nbytes = 0;        // that a round uses, at most
  size_t slot_stride = 0;        // bytes from a slot to the next
  size_t slot_count = 0;

  std::byte* slot(int rank, uint64_t round) const {
    return slots + (static_cast<size_t>(rank) * slot_count + static_cast<size_t>(round % slot_count)) * slot_stride;
  }
};

}  // namespace rr
