// HostRelay: the verdict that all ranks wait for operations that can never be complete.
//
// A rank that is blocked has announced all it can, and its leader says so after what it announced. So when the first
// host sees all ranks blocked it may have the whole picture, unless one of them has moved since. It asks: each other
// leader holds its ranks where they are if none of them has, and votes. When all have held theirs, every rank was
// blocked at the moment of the question, with no request under way to the first host, so the picture was right and
// stays so.
//
// Between the others requests may still be under way. So each leader, once it knows the verdict, says that nothing
// more comes from its ranks, and withdraws when all have said that. What a leader sends after that waits in the
// leader's connection.

#include "base/text.h"
#include "relay/host_relay.h"

namespace rr {
namespace {
constexpr size_t kTextNbytesMost = sizeof Header::withdraw_text - 1;
}  // namespace

void HostRelay::look_for_deadlock() {
  if (hosts_.mine != 0 || phase_ != Phase::kNone || stuck_.has_value() || has_failed(control_)) return;
  stuck_ = own_.freeze_if_stuck();
  if (!stuck_.has_value()) return;
  votes_ = 0;
  refused_ = false;
  links_.send(FrameType::kFreeze, hosts_.here().front(), [&](FrameWriter& out) {
    for (const uint64_t epoch : stuck_->epochs) out.put(epoch);
  });
}

// After its notes. epoch: as it was before them.
void HostRelay::send_block(int rank, uint64_t epoch) {
  Sent& sent = sent_[static_cast<size_t>(rank)];
  if (epoch == sent.blocked_epoch) return;
  links_.tell_decisions(hosts_.here().front());
  own_requests_.show(rank);
  own_.locked([&] {
    const RankLine& line = control_.line(rank);
    if (line.blocked_epoch.load() != epoch) return;  // it may have announced more
    sent.blocked_epoch = epoch;
    const Ticket ticket = own_.blocked_on(rank);
    const bool is_named = ticket.tag != 0 && ticket.is_named();
    links_.send(FrameType::kBlocked, rank, [&](FrameWriter& out) {
      out.put(epoch);
      out.put(line.unnamed.load());
      out.put(ticket);
      out.put(is_named ? own_.stored_name(ticket) : std::string());
    });
  });
}

void HostRelay::apply_block(FrameParser& frame) {
  const int rank = frame.head.rank;
  const uint64_t epoch = frame.take<uint64_t>();
  const uint64_t unnamed = frame.take<uint64_t>();
  Ticket ticket = frame.take<Ticket>();
  const std::string name = frame.take_text(kNameNbytes);
  if (!name.empty()) ticket = own_.latest_named(name, rank);
  frame.expect(!name.empty() || ticket.tag == 0 || ticket.request_slot < kUnnamedSlots, "has no such request slot");
  own_.locked([&] {
    RankLine& line = control_.line(rank);
    if (ticket.tag != 0) line.unnamed.store(unnamed);
    line.blocked_tag.store(ticket.tag);
    line.blocked_on.store(ticket.tag != 0 ? ticket.request_slot + 1 : 0);
    line.blocked_epoch.store(epoch);
  });
}

void HostRelay::apply_freeze(FrameParser& frame) {
  std::vector<uint64_t> epochs;
  for (int r = 0; r < control_.size(); ++r) epochs.push_back(frame.take<uint64_t>());
  const uint32_t frozen = own_.freeze(epochs) ? 1 : 0;
  links_.send(FrameType::kVote, hosts_.here().front(), [&](FrameWriter& out) { out.put(frozen); });
}

void HostRelay::apply_vote(FrameParser& frame) {
  const bool is_refused = frame.take_up_to<uint32_t>(1) == 0;
  if (hosts_.mine != 0 || !stuck_.has_value()) return;
  refused_ |= is_refused;
  if (++votes_ == hosts_.count() - 1) decide(!refused_);
}

void HostRelay::decide(bool stuck) {
  links_.send(FrameType::kVerdict, hosts_.here().front(), [&](FrameWriter& out) {
    out.put(static_cast<uint32_t>(stuck ? 1 : 0));
    out.put(stuck_->unnamed);
    // No more than what is kept of it. The whole text grows with the square of the ranks: 310,000 bytes for 256.
    out.put(shortened(stuck_->text, kTextNbytesMost));
  });
  if (stuck) {
    phase_ = Phase::kVerdict;
  } else {
    stuck_.reset();
    own_.thaw();
  }
}

void HostRelay::apply_verdict(LeaderConnection& connection, FrameParser& frame) {
  const bool is_stuck = frame.take_up_to<uint32_t>(1) != 0;
  Negotiation::Stuck found;
  found.unnamed = frame.take<uint64_t>();
  found.text = frame.take_text(kTextNbytesMost);
  if (!is_stuck) {
    own_.thaw();
    return;
  }
  connection.phase = Phase::kVerdict;
  phase_ = Phase::kVerdict;
  stuck_ = std::move(found);
  links_.send(FrameType::kSettled, hosts_.here().front(), [](FrameWriter&) {});
}

bool HostRelay::finish_verdict() {
  if (!all_are_at(Phase::kVerdict)) return false;
  own_requests_.remove_withdrawn();
  own_.withdraw(stuck_->text, stuck_->unnamed);
  stuck_.reset();
  leave_phase();
  return true;
}

}  // namespace rr
