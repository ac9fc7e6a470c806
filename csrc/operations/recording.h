// What the timeline is told of a group's operations, and when (recorder/recorder.h).
#pragma once

#include <cstdint>

#include "planner/resources.h"

namespace rr {

// The call of an operation, before it is announced. verdicts: deadlock verdicts of the group so far, also those
// that have withdrawn nothing of this rank, which had joined. Together with the joins that all ranks have ended they
// tell in which epoch all ranks count the calls of a name alike: a rank that joins has called less often, and a verdict
// withdraws other calls on each rank.
inline void record_call(const Resources& from, Operation& operation, uint32_t verdicts = 0) {
  if (!from.recorder.is_on()) return;
  const auto joins = static_cast<uint32_t>(from.control.header().join_epoch.load(std::memory_order_acquire));
  operation.recorded =
      from.recorder.call(from.recorded_group.number, operation.name, joins << 16 | (verdicts & 0xFFFF));
}

// The beginning of its execution here: all ranks have announced it.
inline void record_start(Operation& operation, int64_t started_ns, uint8_t algorithm = kNoAlgorithm,
                         bool is_fused = false) {
  operation.recorded.started_ns = started_ns;
  operation.recorded.algorithm = algorithm;
  operation.recorded.is_fused = is_fused;
}

// Its end.
void record_end(const Resources& from, const Operation& operation, bool has_failed);

// The code of join() where records tell kinds: it is no operation, and of it there are only waits.
inline constexpr uint8_t kJoinRecorded = static_cast<uint8_t>(Kind::kBarrier) + 1;

// For as long as it lives a thread waits for the operation, or in join(). Where a framework waits in code of its own,
// in its main thread, the wait is that of a thread of ours (torch's DDP) or of the framework's (TensorFlow, XLA): then
// the record tells how much the main thread computed meanwhile.
class RecordedWait {
 public:
  RecordedWait(const Resources& from, const Operation& operation)
      : RecordedWait(from, &operation, operation.recorded.timeline) {}
  // In join().
  explicit RecordedWait(const Resources& from) : RecordedWait(from, nullptr, from.recorder.timeline()) {}
  ~RecordedWait() {
    if (began_ns_ != 0) write();
  }
  RecordedWait(const RecordedWait&) = delete;
  RecordedWait& operator=(const RecordedWait&) = delete;

 private:
  RecordedWait(const Resources& from, const Operation* operation, uint32_t timeline)
      : from_(from), operation_(operation), timeline_(timeline), began_ns_(timeline != 0 ? now_ns() : 0) {
    if (began_ns_ != 0 && thread_number() != 0) main_cpu_ns_ = main_thread_cpu_ns();
  }
  void write() const;

  const Resources& from_;
  const Operation* const operation_;  // null: join()
  const uint32_t timeline_;
  const int64_t began_ns_;
  int64_t main_cpu_ns_ = 0;
};

}  // namespace rr
