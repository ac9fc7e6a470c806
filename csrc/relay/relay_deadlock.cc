#include "relay/relay_deadlock.h"

#include <algorithm>

#include "base/text.h"
#include "negotiation/segment/failure.h"

namespace rr {
namespace {
constexpr size_t kTextNbytesMost = sizeof Header::withdraw_text - 1;
}  // namespace

void RelayDeadlock::look() {
  if (!parts_.hosts.is_first() || parts_.phase != Phase::kNone || stuck_.has_value() || has_failed(parts_.control))
    return;
  // A verdict withdraws requests, which the notes of ranks here may still be about.
  if (!parts_.are_notes_passed_on()) return;
  stuck_ = parts_.negotiation.deadlock().freeze_if_stuck();
  if (!stuck_.has_value()) return;
  voted_.assign(static_cast<size_t>(parts_.hosts.count()), false);
  refused_ = false;
  parts_.links.send(FrameType::kFreeze, parts_.hosts.leader_here(), [&](FrameWriter& out) {
    for (const uint64_t epoch : stuck_->epochs) out.put(epoch);
  });
}

// After its notes. epoch: as it was before them.
void RelayDeadlock::send_block(int rank, uint64_t epoch) {
  uint64_t& epoch_sent = epochs_sent_[static_cast<size_t>(rank)];
  if (epoch == epoch_sent) return;
  parts_.links.tell_decisions(parts_.hosts.leader_here());
  parts_.own_requests.show(rank);
  parts_.negotiation.segment().locked([&] {
    const RankLine& line = parts_.control.line(rank);
    if (line.blocked_epoch.load() != epoch) return;  // it may have announced more
    epoch_sent = epoch;
    const Ticket ticket = parts_.negotiation.deadlock().blocked_on(rank);
    const bool is_named = ticket.tag != 0 && ticket.is_named();
    parts_.links.send(FrameType::kBlocked, rank, [&](FrameWriter& out) {
      out.put(epoch);
      out.put(line.unnamed.load());
      out.put(ticket);
      out.put(is_named ? parts_.negotiation.names().stored_name(ticket) : std::string());
    });
  });
}

void RelayDeadlock::apply_block(FrameParser& frame) {
  const int rank = frame.head.rank;
  const uint64_t epoch = frame.take<uint64_t>();
  const uint64_t unnamed = take_counter(frame);
  Ticket ticket = frame.take<Ticket>();
  const std::string name = frame.take_text(kNameNbytes);
  if (!name.empty()) ticket = parts_.negotiation.latest_named(name, rank);
  frame.expect(!name.empty() || ticket.tag == 0 || ticket.request_slot < kUnnamedSlots, "has no such request slot");
  frame.expect(ticket.tag < kRefused, "has a value that its field cannot have");
  parts_.negotiation.segment().locked([&] {
    RankLine& line = parts_.control.line(rank);
    if (ticket.tag != 0) line.unnamed.store(unnamed);
    line.blocked_tag.store(ticket.tag);
    line.blocked_on.store(ticket.tag != 0 ? ticket.request_slot + 1 : 0);
    line.blocked_epoch.store(epoch);
  });
}

void RelayDeadlock::apply_freeze(FrameParser& frame) {
  std::vector<uint64_t> epochs;
  for (int r = 0; r < parts_.control.size(); ++r) epochs.push_back(frame.take<uint64_t>());
  const uint32_t frozen = parts_.negotiation.deadlock().freeze(epochs) ? 1 : 0;
  parts_.links.send(FrameType::kVote, parts_.hosts.leader_here(), [&](FrameWriter& out) { out.put(frozen); });
}

void RelayDeadlock::apply_vote(FrameParser& frame) {
  const bool is_refused = frame.take_up_to<uint32_t>(1) == 0;
  if (!parts_.hosts.is_first() || !stuck_.has_value()) return;
  const size_t host = static_cast<size_t>(parts_.hosts.of[frame.head.rank]);
  frame.expect(!voted_[host], "votes twice");
  voted_[host] = true;
  refused_ |= is_refused;
  if (std::count(voted_.begin(), voted_.end(), true) == parts_.hosts.count() - 1) decide(!refused_);
}

void RelayDeadlock::decide(bool stuck) {
  parts_.links.send(FrameType::kVerdict, parts_.hosts.leader_here(), [&](FrameWriter& out) {
    out.put(static_cast<uint32_t>(stuck ? 1 : 0));
    out.put(stuck_->unnamed);
    // No more than what is kept of it. The whole text grows with the square of the ranks: 310,000 bytes for 256.
    out.put(shortened(stuck_->text, kTextNbytesMost));
  });
  if (stuck) {
    parts_.phase = Phase::kVerdict;
  } else {
    stuck_.reset();
    parts_.negotiation.deadlock().thaw();
  }
}

void RelayDeadlock::apply_verdict(LeaderConnection& connection, FrameParser& frame) {
  const bool is_stuck = frame.take_up_to<uint32_t>(1) != 0;
  Deadlock::Stuck found;
  found.unnamed = take_counter(frame);
  found.text = frame.take_text(kTextNbytesMost);
  if (!is_stuck) {
    parts_.negotiation.deadlock().thaw();
    return;
  }
  frame.expect(parts_.negotiation.deadlock().is_frozen(), "decides what it has not asked");
  connection.phase = Phase::kVerdict;
  parts_.phase = Phase::kVerdict;
  stuck_ = std::move(found);
  parts_.links.send(FrameType::kSettled, parts_.hosts.leader_here(), [](FrameWriter&) {});
}

bool RelayDeadlock::finish() {
  if (!parts_.all_are_at(Phase::kVerdict)) return false;
  parts_.own_requests.remove_withdrawn();
  parts_.negotiation.deadlock().withdraw(stuck_->text, stuck_->unnamed);
  stuck_.reset();
  parts_.leave_phase();
  return true;
}

}  // namespace rr
