// How a stream tells the queue's thread that it has come to an operation: from a driver's thread, without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/gpu/device_words.h"
#include "os/bell.h"

namespace rr {

struct DeviceOperation;
class Arrivals;

// What a notify marker carries. A driver may call late, when there is no queue any more: then one whose call is still
// to come has been left to the process (Arrivals::leave_behind).
struct Arrival {
  Arrival(std::shared_ptr<Arrivals> arrivals, std::shared_ptr<DeviceWords> words, DeviceOperation* of, Word its_word,
          bool of_replays)
      : box(std::move(arrivals)), pool(std::move(words)), operation(of), word(its_word), is_recurring(of_replays) {}
  static void reached(void* arrival);

  const std::shared_ptr<Arrivals> box;
  const std::shared_ptr<DeviceWords> pool;  // whose word is written at every replay
  DeviceOperation* const operation;         // for the queue's thread
  const Word word;
  const bool is_recurring;
  std::atomic<uint32_t> count{0};  // calls that the queue's thread has not seen
  Arrival* next = nullptr;
};

class Arrivals {
 public:
  // Those that have come since the last call, with their counts still to be taken; the latest first.
  Arrival* take() { return head_.exchange(nullptr, std::memory_order_acquire); }
  bool empty() const { return head_.load(std::memory_order_seq_cst) == nullptr; }
  Bell& bell() { return bell_; }
  // Nobody takes arrivals any more: a replay lets its stream go on at once.
  void close() { closed_.store(true, std::memory_order_seq_cst); }
  static void leave_behind(std::unique_ptr<Arrival> arrival);

 private:
  friend struct Arrival;
  Bell bell_ = {};
  std::atomic<Arrival*> head_{nullptr};
  std::atomic<bool> closed_{false};
};

}  // namespace rr
