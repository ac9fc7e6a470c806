#include "engine/rank_presence.h"

#include <unistd.h>

#include "base/text.h"

namespace rr {

void RankPresence::identify(const ControlSegment& control, const Hosts& hosts, const Identity& identity) {
  control_ = &control;
  RankFacts& facts = control.facts(rank_);
  facts.pid = ::getpid();
  facts.plan_hash = identity.plan_hash;
  write_text(facts.hostname, identity.hostname);
  if (hosts.leader_here() != rank_) return;
  for (int rank = 0; rank < control.size(); ++rank) {
    const size_t at = static_cast<size_t>(rank);
    control.facts(rank).host = hosts.of[at];
    control.facts(rank).job_rank = identity.job_ranks.empty() ? rank : identity.job_ranks[at];
  }
  SegmentIdentity& segment = control.identity();
  segment.layout = layout_hash();
  segment.size = control.size();
  segment.hosts = hosts.count();
  segment.host = hosts.mine;
  write_text(segment.context, identity.context);
  segment.magic.store(SegmentIdentity::kMagic, std::memory_order_release);
}

void RankPresence::hold(PeerWatch& peers) const {
  const auto is_expected = [this](int rank) {
    return control_->facts(rank).is_held.load() != 0 && control_->line(rank).attendance.load() == Attendance::kPresent;
  };
  if (peers.hold(memory_.get(), rank_, is_expected)) control_->facts(rank_).is_held.store(1);
}

void RankPresence::tell_wait(uint64_t wait, const std::string& text, const std::vector<int>& missing) {
  WaitText told = {};
  told.wait = wait;
  write_text(told.text, text);
  for (const int rank : missing) told.missing.set(rank);
  const std::lock_guard lock(telling_wait_);
  control_->wait_text(rank_).write(told);
}

}  // namespace rr
