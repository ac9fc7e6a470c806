#include "engine/late/late_ranks.h"

#include <algorithm>
#include <utility>

namespace rr {
namespace {
// The quick window is for a job that begins: of seconds in which ranks made ready and nobody waited, 10 % is more than
// five steps. Within so little time a rank must be late for a larger share. Later, four slow steps among even ones
// would be as much, and name a rank for a hiccup.
constexpr int64_t kQuickNs = 2'000'000'000;
constexpr double kQuickTimes = 3;
constexpr int64_t kBeginningNs = 30'000'000'000;
// The long window is for steps of many seconds.
constexpr int64_t kShortNs = 10'000'000'000;
constexpr int64_t kLongNs = 60'000'000'000;
constexpr int64_t kLeastNs = 1'000'000'000;
constexpr int64_t kPauseNs = 60'000'000'000;  // between two warnings
constexpr int64_t kInTimeNs = kLongNs;        // a rank that was told of is in time again once nothing is left of it
constexpr size_t kSamplesLeast = 8;
// One pause, for a checkpoint say, makes no late rank, though operations that have piled up behind it follow at once.
constexpr size_t kOperationsLeast = 4;
constexpr double kLongestShare = 0.4;  // of all the time that it was late, in one operation
constexpr int64_t kOthersTimes = 3;    // later than each of the others
}  // namespace

std::vector<LateRanks::Late> LateRanks::still_late(std::vector<Late> seen, const std::vector<Late>& seen_later) {
  const auto is_over = [&](const Late& one) {
    return std::none_of(seen_later.begin(), seen_later.end(),
                        [&](const Late& other) { return other.rank == one.rank && other.operation == one.operation; });
  };
  seen.erase(std::remove_if(seen.begin(), seen.end(), is_over), seen.end());
  return seen;
}

void LateRanks::add(int64_t now_ns, int64_t dt_ns, std::vector<Late> late) {
  if (begun_ns_ == kNever) begun_ns_ = now_ns;
  window_.push_back({now_ns, dt_ns, std::move(late)});
  while (now_ns - window_.front().at_ns > kLongNs) window_.pop_front();
}

std::vector<LateRanks::Sum> LateRanks::sums(int64_t since_ns, int64_t& window_ns) const {
  std::vector<Sum> sums(told_ns_.size());
  window_ns = 0;
  const auto first = std::lower_bound(window_.begin(), window_.end(), since_ns,
                                      [](const Sample& sample, int64_t at_ns) { return sample.at_ns < at_ns; });
  for (auto sample = first; sample != window_.end(); ++sample) {
    window_ns += sample->dt_ns;
    for (const Late& late : sample->late) {
      Sum& sum = sums[static_cast<size_t>(late.rank)];
      if (sum.operations == 0 || sum.operation != late.operation) {
        ++sum.operations;
        sum.operation = late.operation;
        sum.operation_ns = 0;
      }
      ++sum.samples;
      sum.late_ns += sample->dt_ns;
      sum.operation_ns += sample->dt_ns;
      sum.longest_ns = std::max(sum.longest_ns, sum.operation_ns);
    }
  }
  return sums;
}

std::vector<LateRanks::Found> LateRanks::find_within(int64_t now_ns, int64_t within_ns, double least_share) const {
  int64_t window_ns = 0;
  const std::vector<Sum> all = sums(now_ns - within_ns, window_ns);
  if (window_ns < kLeastNs) return {};
  int64_t latest_ns = 0;
  for (const Sum& sum : all) latest_ns = std::max(latest_ns, sum.late_ns);
  std::vector<Found> found;
  int64_t least_found_ns = latest_ns;
  int64_t most_other_ns = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Sum& sum = all[rank];
    const double share = static_cast<double>(sum.late_ns) / static_cast<double>(window_ns);
    const bool is_again_and_again =
        sum.samples >= kSamplesLeast && sum.operations >= kOperationsLeast &&
        static_cast<double>(sum.longest_ns) <= kLongestShare * static_cast<double>(sum.late_ns);
    if (sum.late_ns * 2 >= latest_ns && share >= least_share && is_again_and_again) {
      found.push_back({static_cast<int>(rank), share, static_cast<double>(window_ns) * 1e-9, sum.operations});
      least_found_ns = std::min(least_found_ns, sum.late_ns);
    } else {
      most_other_ns = std::max(most_other_ns, sum.late_ns);
    }
  }
  // Where most ranks make others wait, or many do a little, the work is uneven, or the cores are few: nobody is late.
  const bool are_few = found.size() <= std::max<size_t>(1, candidates_ / 2);
  if (!are_few || least_found_ns < kOthersTimes * most_other_ns) return {};
  return found;
}

std::vector<LateRanks::Found> LateRanks::late_now(int64_t now_ns) const {
  return find_within(now_ns, kShortNs, share_);
}

// Within so little time one pause may have ended that stands for all of it: only the time before tells.
std::vector<LateRanks::Found> LateRanks::late_from_the_beginning(int64_t now_ns) const {
  if (now_ns - begun_ns_ > kBeginningNs) return {};
  std::vector<Found> found = find_within(now_ns, kQuickNs, std::min(kQuickTimes * share_, (1 + share_) / 2));
  if (found.empty()) return found;
  const std::vector<Found> again = find_within(now_ns, kShortNs, 0);
  const auto is_late_once = [&](const Found& one) {
    return std::none_of(again.begin(), again.end(), [&](const Found& other) { return other.rank == one.rank; });
  };
  found.erase(std::remove_if(found.begin(), found.end(), is_late_once), found.end());
  return found;
}

void LateRanks::forget_who_is_in_time(int64_t now_ns) {
  int64_t window_ns = 0;
  const std::vector<Sum> all = sums(now_ns - kShortNs, window_ns);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (told_ns_[rank] == kNever) continue;
    if (static_cast<double>(all[rank].late_ns) >= share_ / 2 * static_cast<double>(window_ns)) told_ns_[rank] = now_ns;
    if (now_ns - told_ns_[rank] > kInTimeNs) told_ns_[rank] = kNever;
  }
}

std::vector<LateRanks::Found> LateRanks::find(int64_t now_ns) {
  forget_who_is_in_time(now_ns);
  if (last_warning_ns_ != kNever && now_ns - last_warning_ns_ < kPauseNs) return {};
  std::vector<Found> found = late_from_the_beginning(now_ns);
  if (found.empty()) found = late_now(now_ns);
  if (found.empty()) found = find_within(now_ns, kLongNs, share_);
  found.erase(std::remove_if(found.begin(), found.end(),
                             [&](const Found& one) { return told_ns_[static_cast<size_t>(one.rank)] != kNever; }),
              found.end());
  if (found.empty()) return {};
  last_warning_ns_ = now_ns;
  for (const Found& one : found) told_ns_[static_cast<size_t>(one.rank)] = now_ns;
  return found;
}

}  // namespace rr
