// Records on their way from the threads that add them to the one that takes them. Nobody waits: a record that finds the
// ring full is lost.
//
// A bounded queue after D. Vyukov (https://www.1024cores.net/home/lock-free-algorithms/queues): each cell has a
// sequence number, which says whether it is free for position p (p), or holds the record of position p (p + 1).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "os/bell.h"
#include "recorder/record.h"

namespace rr {

class RecordRing {
 public:
  // capacity: a power of two.
  explicit RecordRing(size_t capacity) : cells_(capacity) {
    for (size_t i = 0; i < capacity; ++i) cells_[i].sequence.store(i, std::memory_order_relaxed);
  }

  // False, and nothing added, when the ring is full. From any thread.
  bool add(const Record& record);
  // Takes the oldest records, and numbers them. Returns how many. From one thread at a time.
  size_t take(Record* records, size_t most);
  // Records that have been added and not taken. Not while another thread takes.
  uint64_t left() const { return added_.load(std::memory_order_relaxed) - taken_; }
  // Until a quarter of the ring is full, hurry() is called, or the time is over. Of the thread that takes. is_over:
  // looked at after hurry() can wake this thread.
  void wait(int64_t timeout_ns, const std::atomic<bool>& is_over);
  void hurry() { ring(filled_); }

 private:
  struct alignas(64) Cell {
    std::byte fields[offsetof(Record, sequence)];
    std::atomic<uint64_t> sequence;
  };
  static_assert(sizeof(Cell) == 64);
  Cell& cell_of(uint64_t position) { return cells_[position & (cells_.size() - 1)]; }

  std::vector<Cell> cells_;
  Bell filled_{};
  alignas(64) std::atomic<uint64_t> added_{0};
  alignas(64) uint64_t taken_ = 0;
};

}  // namespace rr
