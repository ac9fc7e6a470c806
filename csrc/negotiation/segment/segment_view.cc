#include "negotiation/segment/segment_view.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"

namespace rr {
namespace {

// A sampler looks every 25 to 250 ms. What it has said is not told for longer: one that hangs goes on to blame.
constexpr int64_t kToldForNs = 2'000'000'000;

// kind: WaitLine's.
std::string kind_name(uint32_t kind) {
  switch (kind) {
#define RR_CASE(id, upper, lower)           \
  case static_cast<uint32_t>(Kind::id) + 1: \
    return lower;
    RR_KINDS(RR_CASE)
#undef RR_CASE
  }
  return "";
}

}  // namespace

SegmentView::SegmentView(int fd) : SegmentView(fd, head_of(fd)) {}

SegmentView::SegmentView(int fd, Head head)
    : control_(ControlSegment::map(fd, head.size, Access::kRead)),
      hosts_(head.hosts),
      host_(head.host),
      context_(std::move(head.context)),
      heard_(static_cast<size_t>(head.size)) {}

SegmentView::Head SegmentView::head_of(int fd) {
  // A mapping of a file that shrinks is a SIGBUS.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw InvalidArgumentError("this is no job's memory: its size can be changed");
  }
  alignas(SegmentIdentity) std::byte bytes[sizeof(SegmentIdentity)] = {};
  if (::pread(fd, bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    throw InvalidArgumentError(with_errno("reading a job's memory"));
  }
  const auto& identity = *reinterpret_cast<const SegmentIdentity*>(bytes);
  const uint64_t magic = identity.magic.load(std::memory_order_acquire);
  if (magic == 0) throw UnavailableError("the ranks of the job have not met yet");
  if (magic != SegmentIdentity::kMagic) throw InvalidArgumentError("this is no job's memory");
  if (identity.layout != layout_hash()) {
    throw UnavailableError("the job runs with another version of ringreduce: use the one that is installed there");
  }
  if (identity.size < 1 || identity.size > kMaxRanks || identity.hosts < 1 || identity.hosts > identity.size ||
      identity.host < 0 || identity.host >= identity.hosts) {
    throw InvalidArgumentError("a job's memory speaks of " + std::to_string(identity.size) + " ranks on " +
                               std::to_string(identity.hosts) + " hosts");
  }
  return {identity.size, identity.hosts, identity.host, text_from(identity.context)};
}

SegmentView::Snapshot SegmentView::read() {
  const Header& header = control_.header();
  Snapshot snapshot;
  snapshot.sampled_s = static_cast<double>(header.sampled_ns.load(std::memory_order_acquire)) * 1e-9;
  const int64_t sampled_at_ns = header.sampled_at_ns.load(std::memory_order_relaxed);
  const int64_t unsampled_ns = sampled_at_ns == 0 ? 0 : now_ns() - sampled_at_ns;
  if (unsampled_ns > kToldForNs) snapshot.unsampled_s = static_cast<double>(unsampled_ns) * 1e-9;
  const auto late = control_.late_text().read();
  if (late && unsampled_ns <= kToldForNs) snapshot.late = text_from(late->text);
  if (header.failed.load(std::memory_order_acquire) == 2) snapshot.failure = text_from(header.failure_text);
  for (int r = 0; r < size(); ++r) snapshot.ranks.push_back(rank(r));
  return snapshot;
}

SegmentView::Rank SegmentView::rank(int rank) {
  const RankFacts& facts = control_.facts(rank);
  const RankLine& line = control_.line(rank);
  Rank known;
  known.host = facts.host;
  known.job_rank = facts.job_rank;
  known.attendance = line.attendance.load(std::memory_order_acquire);
  if (known.attendance > Attendance::kClosed) known.attendance = Attendance::kAbsent;
  if (has_left(known.attendance)) known.cause = text_from(control_.cause(rank).text);
  known.has_joined = line.joined.load(std::memory_order_relaxed) != 0;
  ShownRank shown = {};
  if (facts.host == host_) {
    shown = shown_rank(control_, rank);
  } else {
    RankElsewhere& heard = heard_[static_cast<size_t>(rank)];
    if (const auto news = control_.rank_elsewhere(rank).read()) heard = *news;
    shown = heard.shown;
    if (heard.told_ns != 0) known.age_s = static_cast<double>(now_ns() - heard.told_ns) * 1e-9;
    known.seen_late_s = static_cast<double>(control_.score(rank).late_ns.load(std::memory_order_relaxed)) * 1e-9;
  }
  known.hostname = text_from(shown.hostname);
  known.pid = shown.pid;
  if (shown.is_waiting != 0) known.wait = wait(shown);
  known.waited_s = static_cast<double>(shown.waited_ns) * 1e-9;
  known.late_s = static_cast<double>(shown.late_ns) * 1e-9;
  size_t at = 0;
  control_.stats(rank).for_each([&](const char* name, uint64_t) { known.stats.emplace_back(name, shown.stats[at++]); });
  for (int host = 0; hosts_ > 1 && host < hosts_; ++host) {
    const LinkScore& score = control_.link_score(rank, host);
    if (host == facts.host) continue;
    known.links.push_back({host, score.nbytes.load(std::memory_order_relaxed),
                           static_cast<double>(score.busy_ns.load(std::memory_order_relaxed)) * 1e-9});
  }
  return known;
}

SegmentView::Wait SegmentView::wait(const ShownRank& shown) const {
  Wait wait{kind_name(shown.kind), text_from(shown.wait_text), {}};
  for (int r = 0; r < size(); ++r) {
    if (shown.missing.test(r)) wait.missing.push_back(r);
  }
  return wait;
}

}  // namespace rr
