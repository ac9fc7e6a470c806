// What a job shows of its ranks, in the world's segment, to the sampler of their host (engine/late/wait_sampler.h) and
// to other processes of the same user that look on (segment_view.h). No rank of the job reads it to decide anything.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/seqlock.h"
#include "base/stats.h"
#include "negotiation/segment/rank_mask.h"

namespace rr {

// Of which job the segment is, and how its memory is to be read. Written by the leader of the host, `magic` last.
struct SegmentIdentity {
  static constexpr uint64_t kMagic = 0x3165'6375'6465'7272;  // "rreduce1" in a dump
  alignas(64) std::atomic<uint64_t> magic;
  uint64_t layout;  // equal where all structures of a segment are: layout_hash()
  int32_t size;     // ranks
  int32_t hosts;
  int32_t host;       // this one, by number
  char context[100];  // which of the contexts of its ranks' processes: another group of torch.distributed say
};
static_assert(sizeof(SegmentIdentity) == 128);

// What a thread of the rank waits for, as others sample it (engine/late/wait_sampler.h): a hint. Of a rank with several
// threads that wait it tells of one, the main thread if that waits. The world's is used, for all groups.
struct WaitLine {
  static constexpr uint64_t kOther =
      UINT64_MAX;                          // for a message, room, a GPU, another group's end: nobody sees for whom
  alignas(64) std::atomic<uint64_t> slot;  // request slot + 1, or kOther; 0: none waits
  std::atomic<uint64_t> tag;
  std::atomic<int> group;                // its id
  std::atomic<uint32_t> is_main_thread;  // of the rank's program, 0 or 1
  std::atomic<uint32_t> kind;            // of the operation, + 1; 0: of something else
  std::atomic<uint64_t> number;          // waits that have been shown so far
};
static_assert(sizeof(WaitLine) == 64);

// How a rank's time has been spent since init(), as its host's sampler has seen it; the world's is used.
struct RankScore {
  alignas(64) std::atomic<int64_t> waited_ns;  // it waited for others
  std::atomic<int64_t> late_ns;                // others waited for it
};
static_assert(sizeof(RankScore) == 64);

// What a rank sends to another host, by the rank itself; of ranks elsewhere, as the first host has heard of it. The
// world's is used.
struct LinkScore {
  std::atomic<uint64_t> nbytes;
  std::atomic<uint64_t> busy_ns;  // it had bytes that the network did not take yet, by samples, of a leader
};
static_assert(sizeof(LinkScore) == 16);

// What a rank waits for, in words, once it has waited for 100 ms (kSleepNs in wait_loop.cc). It speaks of one wait, by
// WaitLine::number; of a later one nothing is known yet.
struct WaitText {
  uint64_t wait;
  char text[248];
  RankMask missing;  // the world's ranks that have not announced the operation
};
static_assert(sizeof(WaitText) == 768);

// What is shown of a rank, in one piece: as its host's leader tells it to the first host's
// (relay/status/shown_relay.h).
struct ShownRank {
  int32_t pid;  // as the rank itself sees it
  uint32_t is_waiting;
  uint32_t kind;  // as in WaitLine
  uint32_t unused;
  int64_t waited_ns;  // this and late_ns as in RankScore
  int64_t late_ns;
  uint64_t stats[kStatsCount];
  char hostname[64];
  char wait_text[248];  // "": it has not waited for long
  RankMask missing;
};

// A rank of another host, as the first host has heard of it; the world's is used, there.
struct RankElsewhere {
  int64_t told_ns;  // when it was heard, by the clock here; 0: nothing was
  ShownRank shown;
};

// Which ranks of the host are late again and again, in words as in the warning; "": none is.
struct LateText {
  char text[1024];
};
static_assert(sizeof(LateText) == 1024);

// Of the sizes of a segment's structures, the names in its tables, and the version of this build.
uint64_t layout_hash();

class ControlSegment;
ShownRank shown_rank(const ControlSegment& control, int rank);  // of a rank of this host

}  // namespace rr
