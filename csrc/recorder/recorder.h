// Where the threads of a process leave records of their operations while its timeline is on, for the timeline's thread
// to write into a file. One for all contexts of a process.
//
// Off, it costs an operation a load and a branch. On, nobody waits for the file: see RecordRing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/guarded.h"
#include "os/cycle_counter.h"
#include "recorder/record.h"
#include "recorder/record_ring.h"

namespace rr {

// A small number of the calling thread; 0: the program's main thread.
uint16_t thread_number();
// CPU time of the program's main thread, in nanoseconds.
int64_t main_thread_cpu_ns();

// What an operation keeps for its record from its call on.
struct RecordedCall {
  static constexpr int64_t kAtItsEnd = -1;  // what starts and ends within less than a look at the clock takes

  uint32_t timeline = 0;  // as Recorder::timeline() was; 0: nothing is recorded of it
  uint32_t name = 0;
  uint64_t number = 0;  // named: the epoch, and in the lower 32 bits the count of this rank's calls of that name
  int64_t started_ns = 0;
  uint16_t thread = 0;
  uint8_t algorithm = kNoAlgorithm;
  bool is_fused = false;
  bool in_cycles = false;  // its times, and submitted_ns at its end
};

struct RecordedGroup {
  uint16_t number = 0;     // in records; 0: there have been more groups than records can tell apart
  std::string context;     // the same on all its ranks; "": the job's own
  int id = 0;              // of the group in the context
  std::vector<int> ranks;  // of the job, in the group's order
};

class Recorder {
 public:
  // The number of the timeline that is on; 0: none is.
  uint32_t timeline() const { return timeline_.load(std::memory_order_relaxed); }
  bool is_on() const { return timeline() != 0; }

  // The group with its number. Whether a timeline is on or not.
  RecordedGroup add_group(std::string context, int id, std::vector<int> ranks);
  // For an operation that is called now, while a timeline is on. epoch: calls of a name are counted from 0 in each one;
  // all ranks of the group move to the next one at the same place.
  RecordedCall call(uint16_t group, const std::string& name, uint32_t epoch = 0);
  // The call was refused on this rank: it does not count.
  void take_back(uint16_t group, const std::string& name, const RecordedCall& call);
  // Of an operation of that timeline; ignored if it is not on any more.
  void add(uint32_t timeline, const Record& record) {
    if (timeline != timeline_.load(std::memory_order_acquire)) return;
    if (!ring_->add(record)) dropped_.fetch_add(1, std::memory_order_relaxed);
  }

  // A moment for a record: in nanoseconds, or, where counts_cycles(), in cycles, for a record with kRecordInCycles that
  // is added within microseconds. Of a call: nothing that the program reads before matters to it.
  int64_t moment_of_call() const { return counts_cycles() ? cycles() : now_ns(); }
  // As moment_of_call(), after what the program has waited for.
  int64_t moment() const { return counts_cycles() ? cycles_in_order() : now_ns(); }
  bool counts_cycles() const { return ns_per_cycle_.load(std::memory_order_relaxed) > 0; }
  // Such a moment, microseconds later, in nanoseconds.
  int64_t ns_of(int64_t moment) const {
    const double rate = ns_per_cycle_.load(std::memory_order_relaxed);
    if (rate == 0) return moment;
    return now_ns() - static_cast<int64_t>(static_cast<double>(cycles_in_order() - moment) * rate);
  }

  // --- for the one that writes the timeline
  // Begins a timeline; false: there is one.
  bool begin();
  void end() { timeline_.store(0); }
  // As RecordRing's.
  size_t take(Record* records, size_t most) { return ring_->take(records, most); }
  void wait(int64_t timeout_ns, const std::atomic<bool>& is_over) { ring_->wait(timeout_ns, is_over); }
  void hurry() { ring_->hurry(); }
  // As RecordRing's, which has been made once a timeline has begun.
  uint64_t left() const { return ring_->left(); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // Names since the last call, by their numbers.
  std::vector<std::pair<uint32_t, std::string>> take_names();
  // The groups from the number `first` on, which is at least 1.
  std::vector<RecordedGroup> groups_from(size_t first);

 private:
  struct Name {
    uint32_t number;
    uint32_t epoch;
    uint32_t calls;  // in the epoch
  };
  struct Names {
    std::unordered_map<std::string, Name> known;  // by group and name
    std::vector<std::pair<uint32_t, std::string>> news;
    uint32_t timeline = 0;    // that the counts are of
    bool has_others = false;  // names beyond kNamesMost
  };
  static constexpr size_t kCapacity = 1 << 16;   // records: 3 million operations a second fill a quarter in 5 ms
  static constexpr size_t kNamesMost = 1 << 16;  // at most 244 bytes each are kept: 16 MB

  std::atomic<double> ns_per_cycle_{0};  // 0: cycles are not counted
  std::atomic<uint32_t> timeline_{0};
  uint32_t timelines_ = 0;  // by begin()
  std::unique_ptr<RecordRing> ring_;
  std::atomic<uint64_t> dropped_{0};
  Guarded<Names> names_;
  Guarded<std::vector<RecordedGroup>> groups_;
};

}  // namespace rr
