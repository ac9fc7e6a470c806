#include "engine/group/group_relay.h"

#include <algorithm>

#include "base/clock.h"
#include "base/errors.h"
#include "engine/context.h"

namespace rr {
namespace {
constexpr double kPassOnS = 1.0;  // a leader that leaves waits so long for those of other hosts
constexpr double kFlushS = 0.1;   // they have so long to take what it says last
}  // namespace

// Usually all has been told. To wake the engine for nothing would cost a call two switches of threads (8 B, 4 hosts of
// one rank on 2 cores: 316 to 283 us, 26 us of CPU time of 155 a rank). A leader may see that a rank of its host takes
// part before that rank has left its note, and end its call: then the note's writer finds it unread.
bool GroupRelay::has_rest() const {
  const Hosts& hosts = parts_.from.hosts;
  if (!hosts.several()) return false;
  if (is_watermark_due()) return true;
  if (!exists()) return is_untold(parts_.from.rank);
  // What is held back for other ranks of this host goes out with what they announce.
  return (has_backlog() && !is_patient_.load(std::memory_order_relaxed)) ||
         (must_fetch() && !is_fetched_.load(std::memory_order_relaxed)) || parts_.context.is_in_transit() ||
         std::any_of(hosts.here().begin(), hosts.here().end(), [this](int rank) { return is_untold(rank); });
}

bool GroupRelay::is_untold(int rank) const {
  const Outbox& outbox = parts_.control().outbox(rank);
  return outbox.read.load(std::memory_order_acquire) != outbox.written.load(std::memory_order_acquire);
}

bool GroupRelay::has_leader_announced(Ticket ticket) const {
  return parts_.control().head(ticket.request_slot, parts_.from.hosts.leader_here()).tag.load() >= ticket.tag;
}

bool GroupRelay::is_overlooked(Ticket ticket) const {
  return parts_.from.hosts.several() && !exists() && is_untold(parts_.from.rank) && has_leader_announced(ticket);
}

// An engine that sleeps while some operation is under way sleeps on the bell of the callers.
void GroupRelay::wake_leader() const {
  if (!exists()) {
    const uint64_t watermark = parts_.control().line(parts_.from.rank).watermark.load(std::memory_order_relaxed);
    watermark_due_.store(watermark + kWatermarkStep, std::memory_order_relaxed);
  }
  const int leader = parts_.from.world_ranks[static_cast<size_t>(parts_.from.hosts.leader_here())];
  ring(parts_.context.engine_bell(leader));
  ring(parts_.context.wait_bell(leader));
}

void GroupRelay::hand_over(Ticket asynchronous) const {
  if (!has_rest()) return;
  // The leader's own request, which the operation needs, makes it read all notes. The caller has had a full fence since
  // its own one: one of the two sees the other.
  if (exists() || has_leader_announced(asynchronous) || is_watermark_due()) wake_leader();
}

void GroupRelay::tell_rest() const {
  if (!has_rest()) return;
  if (exists()) {
    parts_.context.try_progress();
    if (!has_rest()) return;
  }
  wake_leader();
}

bool GroupRelay::is_watermark_due() const {
  const uint64_t watermark = parts_.control().line(parts_.from.rank).watermark.load(std::memory_order_acquire);
  return watermark >= watermark_due_.load(std::memory_order_relaxed);
}

bool GroupRelay::progress(bool from_engine) {
  if (relay_ == nullptr || is_broken_) return false;
  try {
    const bool moved = relay_->progress();
    backlog_.store(relay_->has_backlog() && !has_failed(parts_.control()), std::memory_order_relaxed);
    is_patient_.store(relay_->is_patient(), std::memory_order_relaxed);
    set_must_fetch(relay_->awaits_others() && !has_failed(parts_.control()), from_engine);
    watermark_due_.store(relay_->watermark_due(), std::memory_order_relaxed);
    return moved;
  } catch (const std::exception& error) {
    parts_.fail(error);
    backlog_.store(false, std::memory_order_relaxed);
    set_must_fetch(false, from_engine);
    return false;
  }
}

void GroupRelay::set_must_fetch(bool must, bool from_engine) {
  must_fetch_.store(must, std::memory_order_relaxed);
  if (!must || from_engine) is_fetched_.store(must, std::memory_order_relaxed);
}

// MPI_Finalize may hang where messages are left that nobody has taken (MPICH 4.0.2).
void GroupRelay::close(const std::vector<GroupRelay*>& relays, Attendance how) {
  const auto repeat = [&](double limit_s, const auto& step) {
    std::vector<GroupRelay*> left = relays;
    const Deadline deadline = Deadline::after_s(limit_s);
    do {
      left.erase(std::remove_if(left.begin(), left.end(), [&](GroupRelay* relay) { return relay->last(how, step); }),
                 left.end());
      if (!left.empty()) relax(true);
    } while (!left.empty() && !deadline.passed());
  };
  const bool everybody = how == Attendance::kRemoved;
  repeat(kPassOnS, [&](HostRelay& relay) { return relay.pass_on(everybody); });
  if (everybody) return;
  const auto send_close = [](HostRelay& relay) {
    relay.send_close();
    return true;
  };
  for (GroupRelay* relay : relays) relay->last(how, send_close);
  repeat(kFlushS, [](HostRelay& relay) { return relay.flush(); });
}

// Says what step says of the relay; true without one.
bool GroupRelay::last(Attendance how, const std::function<bool(HostRelay&)>& step) {
  try {
    return relay_ == nullptr || is_broken_ || step(*relay_);
  } catch (const std::exception& error) {
    is_broken_ = true;
    if (how == Attendance::kShutDown) {
      parts_.control().line(parts_.from.rank).attendance.store(Attendance::kClosed, std::memory_order_release);
    }
    warn(error);
    return true;
  }
}

// A lost peer is an ordinary event, and nobody who leaves misses it; any other error is a fault that no call will
// raise. Where memory has run out there may be none for the text either, and a rank leaves all the same.
void GroupRelay::warn(const std::exception& error) const noexcept {
  try {
    if (code_of(error) == ErrorCode::kPeerLostError) return;
    parts_.from.log.warning(parts_.from.here() + "] while leaving: " + error.what());
  } catch (const std::exception&) {
  }
}

}  // namespace rr
