#include "engine/late/slow_links.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace rr {
namespace {
constexpr int64_t kLinkWindowNs = 10'000'000'000;
constexpr int64_t kLinkLeastNs = 6'000'000'000;   // of which something is said
constexpr int64_t kLinkPauseNs = 60'000'000'000;  // between two warnings
constexpr double kOtherLinksTimes = 2;            // slower than each of the others
// A link with less of what the busiest one carries carries no data: leaders of hosts talk to each other by all links.
constexpr double kIdlePart = 100;
}  // namespace

void SlowLinks::add(int64_t now_ns, std::vector<Link> links) {
  window_.push_back({now_ns, std::move(links)});
  while (now_ns - window_.front().at_ns > kLinkWindowNs) window_.pop_front();
}

SlowLinks::Use SlowLinks::use(const Link& begin, const Link& end, double window_ns) {
  const double nbytes = static_cast<double>(end.nbytes) - static_cast<double>(begin.nbytes);
  const double busy_ns = static_cast<double>(end.busy_ns) - static_cast<double>(begin.busy_ns);
  if (busy_ns <= 0) return {0, nbytes, std::numeric_limits<double>::infinity()};
  return {busy_ns / window_ns, nbytes, nbytes / (busy_ns * 1e-9)};
}

std::vector<SlowLinks::Found> SlowLinks::slow_between(const Sample& begin, const Sample& end) const {
  const double window_ns = static_cast<double>(end.at_ns - begin.at_ns);
  std::vector<Use> uses;
  double most_nbytes = 0;
  for (size_t i = 0; i < end.links.size(); ++i) {
    uses.push_back(use(begin.links[i], end.links[i], window_ns));
    most_nbytes = std::max(most_nbytes, uses.back().nbytes);
  }
  const auto is_used = [&](const Use& one) { return one.nbytes > 0 && one.nbytes >= most_nbytes / kIdlePart; };
  double least_rate = std::numeric_limits<double>::infinity();
  for (const Use& one : uses) {
    if (is_used(one)) least_rate = std::min(least_rate, one.rate);
  }
  std::vector<Found> found;
  size_t used = 0;
  double found_rate = 0;
  double others_rate = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!is_used(uses[i])) continue;
    ++used;
    if (uses[i].share >= share_ && uses[i].rate < kOtherLinksTimes * least_rate) {
      const Link& link = end.links[i];
      found.push_back({link.from, link.to, std::min(1.0, uses[i].share), uses[i].rate, 0, window_ns * 1e-9});
      found_rate = std::max(found_rate, uses[i].rate);
    } else {
      others_rate = std::min(others_rate, uses[i].rate);
    }
  }
  if (found.size() > used / 2 || found_rate * kOtherLinksTimes > others_rate) return {};
  for (Found& one : found) one.others_rate = others_rate;
  return found;
}

// In each third of the window, too: a single outage makes no slow link.
std::vector<SlowLinks::Found> SlowLinks::slow_now() const {
  if (window_.size() < 4 || window_.back().at_ns - window_.front().at_ns < kLinkLeastNs) return {};
  std::vector<Found> found = slow_between(window_.front(), window_.back());
  const size_t last = window_.size() - 1;
  for (size_t third = 0; third < 3 && !found.empty(); ++third) {
    const std::vector<Found> part = slow_between(window_[last * third / 3], window_[last * (third + 1) / 3]);
    const auto is_missing = [&](const Found& one) {
      return std::none_of(part.begin(), part.end(),
                          [&](const Found& other) { return other.from == one.from && other.to == one.to; });
    };
    found.erase(std::remove_if(found.begin(), found.end(), is_missing), found.end());
  }
  return found;
}

std::vector<SlowLinks::Found> SlowLinks::find(int64_t now_ns) {
  if (last_warning_ns_ >= 0 && now_ns - last_warning_ns_ < kLinkPauseNs) return {};
  std::vector<Found> found = slow_now();
  if (!found.empty()) last_warning_ns_ = now_ns;
  return found;
}

// A host's leader alone samples whether its links are busy; the bytes are those of all its ranks.
std::vector<SlowLinks::Link> links_from(int from, const ControlSegment& control, const Hosts& hosts) {
  std::vector<SlowLinks::Link> links;
  for (int to = 0; to < hosts.count(); ++to) {
    if (to == from) continue;
    SlowLinks::Link link{from, to, 0, 0};
    for (const int rank : hosts.members[static_cast<size_t>(from)]) {
      const LinkScore& score = control.link_score(rank, to);
      link.nbytes += score.nbytes.load(std::memory_order_relaxed);
      link.busy_ns = std::max(link.busy_ns, score.busy_ns.load(std::memory_order_relaxed));
    }
    links.push_back(link);
  }
  return links;
}

std::vector<SlowLinks::Link> links_of(const ControlSegment& control, const Hosts& hosts) {
  std::vector<SlowLinks::Link> links;
  for (int from = 0; from < hosts.count(); ++from) {
    const std::vector<SlowLinks::Link> more = links_from(from, control, hosts);
    links.insert(links.end(), more.begin(), more.end());
  }
  return links;
}

}  // namespace rr
