// Which ranks make the others wait again and again: a judgement on samples of who waits for whom.
//
// A sample says for which ranks the others wait at that moment. The share of the samples that name a rank is the share
// of the time that the others wait for it, whatever the operations are, and costs the operations nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace rr {

class LateRanks {
 public:
  struct Found {
    int rank = 0;
    double share = 0;  // of the window's time the others waited for it
    double window_s = 0;
    size_t operations = 0;  // in which they did
  };

  // share: of the time, from 0 to 1, from which on a rank is worth a word.
  LateRanks(size_t size, double share) : share_(share), told_ns_(size, kNever) {}

  // dt_ns: for which the sample stands. ranks: for whom others wait, ascending; operation: in which, whatever number it
  // is known by.
  void add(int64_t now_ns, int64_t dt_ns, const std::vector<int>& ranks, uint64_t operation);
  // Ranks that are worth a word now: far later than the others, in several operations. None for a minute after a word,
  // and none about the same rank again before it has been in time for a while.
  std::vector<Found> find(int64_t now_ns);

 private:
  struct Sample {
    int64_t at_ns;
    int64_t dt_ns;
    std::vector<int> ranks;
    uint64_t operation;
  };
  struct Sum {
    int64_t late_ns = 0;
    size_t samples = 0;
    size_t operations = 0;
    uint64_t last_operation = 0;
  };
  static constexpr int64_t kNever = -1;

  std::vector<Sum> sums(int64_t& window_ns) const;

  const double share_;
  std::deque<Sample> window_;
  std::vector<int64_t> told_ns_;  // by rank: when it was late last, since a word about it; kNever: no word
  int64_t last_word_ns_ = kNever;
};

}  // namespace rr
