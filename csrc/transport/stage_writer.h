// How a rank writes what another rank reads next: through its caches, or past them.
//
// A store to a line that another core has read takes that line back first, and a reader fetches what is in the caches
// of another core from there. Which way is faster depends on where the two cores are. Two ranks, virtual machines of
// EPYC processors that are moved from one placement to another while they run, ns per 64 B line (a fold reads a line of
// the other rank and writes one):
//
//                     one core: put, fold, take     one L3: put, fold, take     two L3s: write, read
//     cached              1.7, 2.6, 1.8                 4.3, 17.5, 2.4              21 - 27, 3
//     streamed            5.0, 8.5, 2.1                 4.5,  9.0, 2.2              2, 3
//
// So both ways are compared from time to time. That is a matter of this rank alone: it changes times, never bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace rr {

// The way that comparisons have found faster: several that agree, since one may have met an interrupt.
class WriteMode {
 public:
  // mode: a value of RINGREDUCE_STAGING.
  explicit WriteMode(const std::string& mode) : adapts_(mode == "auto"), streams_(mode == "streamed") {}

  bool adapts() const { return adapts_; }
  bool streams() const { return streams_; }
  // False: comparisons have begun to tell another thing.
  bool is_sure() const;
  void vote(bool for_streaming);

 private:
  bool adapts_;
  bool streams_;
  int votes_ = 0;  // of the latest comparisons: > 0 for streaming
};

// dst is shared memory; whole before a release store that follows. Any alignment; nothing overlaps. Few bytes are
// written through the caches.
void write(std::byte* dst, const std::byte* src, size_t nbytes, bool streams);

// Into eager buffers. It compares what writing takes, on its own data: with two L3s an all-reduce of 4 KiB took 2.4 us
// cached and 1.1 us streamed, of 16 KiB 9.2 and 2.6 us, of 512 B 0.7 and 0.8 us.
class EagerWriter {
 public:
  explicit EagerWriter(const std::string& mode) : mode_(mode) {}

  void write(std::byte* dst, const std::byte* src, size_t nbytes);
  bool streams() const { return mode_.streams(); }
  // What a comparison of `sample` bytes took.
  void note(int64_t cached_ns, int64_t streamed_ns, size_t sample);

 private:
  void compare(std::byte* dst, const std::byte* src, size_t sample);

  WriteMode mode_;
  int64_t until_next_ = 0;  // bytes before the next comparison
};

// Into the stage. Some rounds compare: in them all ranks write every second page of a slot past the caches, and each
// times what it writes, folds and reads of either kind. Its own reads stand for those of what it has written. A rank
// that only writes, such as the root of a broadcast, goes by what writing takes.
class StageWriter {
 public:
  enum class Phase { kPut, kFold, kTake };

  explicit StageWriter(const std::string& mode) : mode_(mode) {}

  void write(std::byte* dst, const std::byte* src, size_t nbytes) const { rr::write(dst, src, nbytes, streams()); }
  // Whether write() goes past the caches now: then what is computed is best computed elsewhere first.
  bool streams() const { return mode_.streams(); }

  // Of a round of the group, the same on all ranks.
  bool compares(uint64_t round) const;
  // In such a round: whether this page of a slot is written past the caches. A rank that always works on the same page
  // has it once in this way and once in the other.
  static bool is_streamed(uint64_t round, size_t page);
  // A part of such a round took so long, here.
  void note(Phase phase, bool was_streamed, int64_t ns, size_t nbytes);
  // Such a round is over.
  void judge();

 private:
  struct Taken {
    int64_t ns = 0;
    size_t nbytes = 0;
    double per_byte() const { return static_cast<double>(ns) / static_cast<double>(nbytes); }
  };
  struct Compared {
    Taken cached;
    Taken streamed;
    bool is_new = false;  // something has been noted since the last judgement
  };

  WriteMode mode_;
  std::array<Compared, 3> phases_;
};

}  // namespace rr
