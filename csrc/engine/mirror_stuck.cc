// Mirror: the verdict that all ranks wait for operations that can never be complete.
//
// A rank that is blocked has stated all it can, and its leader says so after what it stated. So when the first host
// sees all ranks blocked it may have the whole picture, unless one of them has moved since. It asks: each other leader
// holds its ranks where they are if none of them has, and votes. When all have held theirs, every rank was blocked at
// the moment of the question, with no statement under way to the first host, so the picture was right and stays so.
//
// Between the others statements may still be under way. So each leader, once it knows the verdict, says that nothing
// more comes from its ranks, and withdraws when all have said that; what comes after that waits in its line.

#include <algorithm>

#include "base/text.h"
#include "engine/mirror.h"

namespace rr {
namespace {
constexpr size_t kTextNbytesMost = sizeof Header::withdraw_text - 1;
}  // namespace

void Mirror::look_for_deadlock() {
  if (hosts_.mine != 0 || gate_ != Gate::kNone || stuck_.has_value() || has_failed(board_)) return;
  stuck_ = own_.freeze_if_stuck();
  if (!stuck_.has_value()) return;
  votes_ = 0;
  refused_ = false;
  send(FrameType::kFreeze, hosts_.here().front(), [&](FrameWriter& out) {
    for (const uint64_t epoch : stuck_->epochs) out.put(epoch);
  });
}

// After its notes. epoch: as it was before them.
void Mirror::send_block(int rank, uint64_t epoch) {
  Sent& sent = sent_[static_cast<size_t>(rank)];
  if (epoch == sent.blocked_epoch) return;
  own_.locked([&] {
    const RankLine& line = board_.line(rank);
    if (line.blocked_epoch.load() != epoch) return;  // it may have stated more
    sent.blocked_epoch = epoch;
    const Ticket ticket = own_.blocked_on(rank);
    const bool is_named = ticket.tag != 0 && ticket.cell >= kUnnamedCells;
    send(FrameType::kBlocked, rank, [&](FrameWriter& out) {
      out.put(epoch);
      out.put(line.unnamed.load());
      out.put(ticket);
      out.put(is_named ? own_.stored_name(ticket) : std::string());
    });
  });
}

void Mirror::apply_block(FrameParser& frame) {
  const int rank = frame.head.rank;
  const uint64_t epoch = frame.take<uint64_t>();
  const uint64_t unnamed = frame.take<uint64_t>();
  Ticket ticket = frame.take<Ticket>();
  const std::string name = frame.take_text(kNameNbytes);
  if (!name.empty()) ticket = own_.latest_named(name, rank);
  frame.expect(!name.empty() || ticket.tag == 0 || ticket.cell < kUnnamedCells, "has no such cell");
  own_.locked([&] {
    RankLine& line = board_.line(rank);
    if (ticket.tag != 0) line.unnamed.store(unnamed);
    line.blocked_tag.store(ticket.tag);
    line.blocked_on.store(ticket.tag != 0 ? ticket.cell + 1 : 0);
    line.blocked_epoch.store(epoch);
  });
}

void Mirror::apply_freeze(FrameParser& frame) {
  std::vector<uint64_t> epochs;
  for (int r = 0; r < board_.size(); ++r) epochs.push_back(frame.take<uint64_t>());
  const uint32_t frozen = own_.freeze(epochs) ? 1 : 0;
  send(FrameType::kVote, hosts_.here().front(), [&](FrameWriter& out) { out.put(frozen); });
}

void Mirror::apply_vote(FrameParser& frame) {
  const bool is_refused = frame.take_up_to<uint32_t>(1) == 0;
  if (hosts_.mine != 0 || !stuck_.has_value()) return;
  refused_ |= is_refused;
  if (++votes_ == hosts_.count() - 1) decide(!refused_);
}

void Mirror::decide(bool stuck) {
  send(FrameType::kVerdict, hosts_.here().front(), [&](FrameWriter& out) {
    out.put(static_cast<uint32_t>(stuck ? 1 : 0));
    out.put(stuck_->unnamed);
    // No more than what is kept of it. The whole text grows with the square of the ranks: 310,000 bytes for 256.
    out.put(shortened(stuck_->text, kTextNbytesMost));
  });
  if (stuck) {
    gate_ = Gate::kVerdict;
  } else {
    stuck_.reset();
    own_.thaw();
  }
}

void Mirror::apply_verdict(Line& line, FrameParser& frame) {
  const bool is_stuck = frame.take_up_to<uint32_t>(1) != 0;
  Ledger::Stuck found;
  found.unnamed = frame.take<uint64_t>();
  found.text = frame.take_text(kTextNbytesMost);
  if (!is_stuck) {
    own_.thaw();
    return;
  }
  line.gate = Gate::kVerdict;
  gate_ = Gate::kVerdict;
  stuck_ = std::move(found);
  send(FrameType::kSettled, hosts_.here().front(), [](FrameWriter&) {});
}

bool Mirror::finish_verdict() {
  if (!all_are_at(Gate::kVerdict)) return false;
  own_.withdraw(stuck_->text, stuck_->unnamed);
  stuck_.reset();
  pass_gate();
  for (auto one = incomplete_.begin(); one != incomplete_.end();) {
    const auto& tag = board_.head(one->first, one->second.rank).tag;
    one = tag.load() != one->second.tag ? incomplete_.erase(one) : std::next(one);
  }
  return true;
}

}  // namespace rr
