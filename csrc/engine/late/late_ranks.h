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
  struct Late {
    int rank = 0;
    uint64_t operation = 0;  // in which, by whatever number it is known
  };
  struct Found {
    int rank = 0;
    double share = 0;  // of the window's time the others waited for it
    double window_s = 0;
    size_t operations = 0;  // in which they did
  };

  // candidates: how many ranks may be late. share: of the time, from 0 to 1, from which on a rank is worth a warning.
  LateRanks(size_t size, size_t candidates, double share)
      : share_(share), candidates_(candidates), told_ns_(size, kNever) {}

  // Of `seen`, who is as late in what was seen a while later: in the same operation.
  static std::vector<Late> still_late(std::vector<Late> seen, const std::vector<Late>& seen_later);
  // dt_ns: for which the sample stands.
  void add(int64_t now_ns, int64_t dt_ns, std::vector<Late> late);
  // Who is late, as far as the last ten seconds tell.
  std::vector<Found> late_now(int64_t now_ns) const;
  // Ranks that are worth a warning now: far later than the others, in several operations. None for a minute after a
  // warning, and none about the same rank again before it has been in time for a minute.
  std::vector<Found> find(int64_t now_ns);

 private:
  struct Sample {
    int64_t at_ns;
    int64_t dt_ns;
    std::vector<Late> late;
  };
  struct Sum {
    int64_t late_ns = 0;
    size_t samples = 0;
    size_t operations = 0;
    uint64_t operation = 0;  // the last one, and how late the rank was in it
    int64_t operation_ns = 0;
    int64_t longest_ns = 0;  // of one operation
  };
  static constexpr int64_t kNever = -1;

  std::vector<Found> find_within(int64_t now_ns, int64_t within_ns, double least_share) const;
  std::vector<Found> late_from_the_beginning(int64_t now_ns) const;
  std::vector<Sum> sums(int64_t since_ns, int64_t& window_ns) const;
  void forget_who_is_in_time(int64_t now_ns);

  const double share_;
  const size_t candidates_;
  std::deque<Sample> window_;
  std::vector<int64_t> told_ns_;  // by rank: when it was late last, since a warning about it; kNever: no warning
  int64_t last_warning_ns_ = kNever;
  int64_t begun_ns_ = kNever;
};

}  // namespace rr
