// How a rank writes what another rank reads next: through its caches, or past them.
//
// A store to a line that another core has read takes that line back first. Between cores of one L3 that is quick, and
// the reader then finds the data near; between cores of two it takes so long that going by way of the memory is faster.
// Measured on a virtual machine of an EPYC 9004 that is moved from one to the other while it runs, ns per 64 B line:
//
//                    one L3: write, read      two L3s: write, read
//     cached              2.7 - 7, 1.5                 21 - 27, 3
//     streamed               2, 3.7                     2, 3
//
// and an all-reduce of 2 MiB of private memory with two L3s took 1050 us cached, 180 us streamed (one L3: 87, 146).
// With two L3s an all-reduce of 4 KiB, whose bytes wait in an eager buffer, took 2.4 us cached and 1.1 us streamed, of
// 16 KiB 9.2 and 2.6 us, of 512 B 0.7 and 0.8 us. So a writer compares the two on its own data from time to time. That
// is a matter of this rank alone: it changes times, never bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rr {

class StageWriter {
 public:
  // mode: a value of RINGREDUCE_STAGING.
  explicit StageWriter(const std::string& mode);

  // dst is shared memory; whole before a release store that follows. Any alignment; nothing overlaps.
  void write(std::byte* dst, const std::byte* src, size_t nbytes);
  // Whether write() goes past the caches now: then what is computed is best computed elsewhere first.
  bool streams() const { return streams_; }
  // What a comparison of `sample` bytes took; several that agree decide.
  void note(int64_t cached_ns, int64_t streamed_ns, size_t sample);

 private:
  void compare(std::byte* dst, const std::byte* src, size_t sample);

  bool adapts_;
  bool streams_;
  int votes_ = 0;       // of the latest comparisons: > 0 for streaming
  int until_next_ = 0;  // writes before the next comparison
};

}  // namespace rr
