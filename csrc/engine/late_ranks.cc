#include "engine/late_ranks.h"

#include <algorithm>

namespace rr {
namespace {
constexpr int64_t kWindowNs = 10'000'000'000;
constexpr int64_t kLeastWindowNs = 1'000'000'000;
constexpr int64_t kPauseNs = 60'000'000'000;   // between two words
constexpr int64_t kInTimeNs = 60'000'000'000;  // a rank that was told of is in time again after so long
constexpr size_t kSamplesLeast = 8;
constexpr size_t kOperationsLeast = 4;  // one pause, for a checkpoint say, makes no late rank
constexpr int64_t kOthersTimes = 3;     // later than each of the others
}  // namespace

void LateRanks::add(int64_t now_ns, int64_t dt_ns, const std::vector<int>& ranks, uint64_t operation) {
  window_.push_back({now_ns, dt_ns, ranks, operation});
  while (now_ns - window_.front().at_ns > kWindowNs) window_.pop_front();
}

std::vector<LateRanks::Sum> LateRanks::sums(int64_t& window_ns) const {
  std::vector<Sum> sums(told_ns_.size());
  window_ns = 0;
  for (const Sample& sample : window_) {
    window_ns += sample.dt_ns;
    for (const int rank : sample.ranks) {
      Sum& sum = sums[static_cast<size_t>(rank)];
      sum.late_ns += sample.dt_ns;
      ++sum.samples;
      if (sum.operations == 0 || sum.last_operation != sample.operation) ++sum.operations;
      sum.last_operation = sample.operation;
    }
  }
  return sums;
}

std::vector<LateRanks::Found> LateRanks::find(int64_t now_ns) {
  int64_t window_ns = 0;
  const std::vector<Sum> all = sums(window_ns);
  if (window_ns < kLeastWindowNs) return {};
  const auto share_of = [&](const Sum& sum) {
    return static_cast<double>(sum.late_ns) / static_cast<double>(window_ns);
  };
  int64_t latest_ns = 0;
  for (const Sum& sum : all) latest_ns = std::max(latest_ns, sum.late_ns);
  std::vector<Found> found;
  int64_t least_found_ns = latest_ns;
  int64_t most_other_ns = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Sum& sum = all[rank];
    const double share = share_of(sum);
    if (told_ns_[rank] != kNever && share >= share_ / 2) told_ns_[rank] = now_ns;
    if (told_ns_[rank] != kNever && now_ns - told_ns_[rank] > kInTimeNs) told_ns_[rank] = kNever;
    const bool is_late = sum.late_ns * 2 >= latest_ns && share >= share_ && sum.samples >= kSamplesLeast &&
                         sum.operations >= kOperationsLeast;
    if (is_late) {
      found.push_back({static_cast<int>(rank), share, static_cast<double>(window_ns) * 1e-9, sum.operations});
      least_found_ns = std::min(least_found_ns, sum.late_ns);
    } else {
      most_other_ns = std::max(most_other_ns, sum.late_ns);
    }
  }
  // Where most ranks make others wait, or many do a little, the work is uneven, or the cores are few: nobody is late.
  const bool are_few = found.size() <= std::max<size_t>(1, all.size() / 2);
  if (found.empty() || !are_few || least_found_ns < kOthersTimes * most_other_ns) return {};
  if (last_word_ns_ != kNever && now_ns - last_word_ns_ < kPauseNs) return {};
  found.erase(std::remove_if(found.begin(), found.end(),
                             [&](const Found& one) { return told_ns_[static_cast<size_t>(one.rank)] != kNever; }),
              found.end());
  if (found.empty()) return {};
  last_word_ns_ = now_ns;
  for (const Found& one : found) told_ns_[static_cast<size_t>(one.rank)] = now_ns;
  return found;
}

}  // namespace rr
