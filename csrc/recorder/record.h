// What a rank's timeline says of one operation or one wait. docs/user/timeline.md describes the file that holds
// records; ringreduce/timeline/record_file.py reads it.
#pragma once

#include <cstdint>

namespace rr {

enum class RecordType : uint8_t { kOperation, kWait, kClock, kMessage, kLink };

enum RecordFlag : uint8_t {
  kRecordAsync = 1,
  kRecordFailed = 2,
  kRecordQuick = 4,   // it has ended from the request slots
  kRecordOnGpu = 8,   // times are of issuing
  kRecordFused = 16,  // it has shared a bucket with others
  // Times are counts of the processor's cycles (os/cycle_counter.h). The timeline's thread turns them into nanoseconds.
  kRecordInCycles = 32
};

inline constexpr uint8_t kNoAlgorithm = 255;

// Times are CLOCK_MONOTONIC, in nanoseconds.
struct Record {
  int64_t called_ns = 0;   // a wait, a link: the begin; a clock: when the other host was asked
  int64_t started_ns = 0;  // when execution began here, 0: never; a clock: the other host's clock
  int64_t ended_ns = 0;    // a clock: when the answer came
  // A wait of another thread than the program's main one: CPU time of the main thread meanwhile, in nanoseconds.
  uint64_t nbytes = 0;
  // An unnamed operation: as all ranks count it; a named one: of this rank's calls of that name. A link: nanoseconds in
  // which it had bytes that the network did not take yet.
  uint64_t number = 0;
  uint32_t name = 0;   // Recorder's number of the name; 0: unnamed
  uint16_t group = 0;  // Recorder's number of the group
  int16_t peer = -1;   // a message, a clock: a rank of the job; a link: the lowest rank of the other host
  RecordType type = RecordType::kOperation;
  uint8_t kind = 0;  // of the operation; of a wait in join(): the code after the last of them
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t algorithm = kNoAlgorithm;
  uint8_t flags = 0;
  uint16_t thread = 0;  // that called; 0: the program's main thread
  uint64_t sequence = 0;
};
static_assert(sizeof(Record) == 64);

}  // namespace rr
