// What each rank tells of itself in the control segment: how far it has come, whether and why it has left, who it is,
// and what it waits for. A rank writes its own records; all ranks of its host read them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rr {

inline constexpr size_t kCpusMost = 1024;

// The cursor of a rank that has left with nothing pending: others have from it all they will ever need.
inline constexpr uint64_t kFinished = uint64_t{1} << 63;

enum class Attendance : uint32_t {
  kAbsent,
  kPresent,
  kShutDown,
  kRemoved,  // the group is, by all members
  kClosed,   // shut down, and of a leader: passes nothing on any more
};

struct alignas(64) RankLine {
  // --- what changes with each operation
  std::atomic<uint64_t> watermark;  // unnamed operations below it are consumed here
  std::atomic<uint64_t> cursor;     // log entries below it are consumed here
  // Request slot + 1 of the operation that blocks this rank's only thread; 0 = not blocked.
  std::atomic<uint64_t> blocked_on;
  std::atomic<uint64_t> blocked_tag;
  std::atomic<uint64_t> blocked_epoch;  // moves whenever blocked_on does
  std::atomic<uint64_t> unnamed;        // this rank's counter of unnamed operations when it joined or blocked
  std::atomic<int64_t> seen_ns;         // when a thread of this rank last looked around; all ranks have one clock
  // --- what hardly changes, and all ranks read in each operation: a line of its own stays in their caches
  alignas(64) std::atomic<Attendance> attendance;
  std::atomic<uint32_t> joined;  // 0, or the stamp of its join: 1 more than the largest that its host knew of
};
static_assert(sizeof(RankLine) == 128);

// Whether the rank will announce nothing more.
inline bool has_left(Attendance how) { return how == Attendance::kShutDown || how == Attendance::kClosed; }
inline bool has_left(const RankLine& line) { return has_left(line.attendance.load()); }
inline bool has_closed(const RankLine& line) { return line.attendance.load() == Attendance::kClosed; }
// For a leader that was killed while it left: it has begun to shut down, and cannot say that it has closed.
inline void mark_closed(RankLine& line) {
  Attendance how = Attendance::kShutDown;
  line.attendance.compare_exchange_strong(how, Attendance::kClosed);
}

// Why a rank has left: the text of the PeerLostError of those that miss it. Empty: it has not said, and they get a
// ShutdownError. Written before the attendance that tells that the rank has left, and read after it only: what a rank
// had begun to write when it was killed is never read.
struct RankCause {
  char text[1024];
};

struct RankFacts {
  uint64_t cores[kCpusMost / 64];  // affinity mask
  int32_t pid;                     // as the rank itself sees it; 0 of ranks elsewhere
  int32_t host;                    // by the leader, of all ranks
  int32_t job_rank;                // among the job's ranks, where those of a context are some of them
  std::atomic<int32_t> is_held;    // 1 once its Presence can be asked for
  uint64_t plan_hash;              // TuningPlan's; 0 without a plan
  char hostname[64];
};

// For the verdict on ranks of several threads (negotiation/deadlock_timeout.h); the world's is used.
struct RankWait {
  alignas(64) std::atomic<uint64_t> calls;     // of operations, in all groups
  alignas(64) std::atomic<int64_t> looked_ns;  // when a thread last said that it waits in vain; 0: none does
  int64_t since_ns;                            // when it began to wait. This and the text: under the lock
  char text[432];                              // what it waits for
};
static_assert(sizeof(RankWait) == 512);

// Where a rank stands: a question of others, and its answer (negotiation/rank_status.h); the world's is used.
struct RankStatus {
  alignas(64) std::atomic<uint64_t> asked;  // questions so far
  std::atomic<uint64_t> answered;           // how many of them the text answers
  char text[2032];                          // under the lock
};
static_assert(sizeof(RankStatus) == 2048);

}  // namespace rr
