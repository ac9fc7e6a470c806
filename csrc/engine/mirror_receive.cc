// Mirror: what the other leaders say, written into this host's segment.

#include <algorithm>

#include "base/text.h"
#include "engine/mirror.h"
#include "group/failure.h"

namespace rr {

bool Mirror::receive() {
  bool moved = false;
  for (Line& line : lines_) {
    if (line.link == nullptr) continue;
    while (line.in.nbytes_left() < kAhead &&
           line.in.fill([&](std::byte* bytes, size_t nbytes) { return line.link->pull(bytes, nbytes); }))
      moved = true;
    moved |= line.in.parse([&](FrameParser& frame) { return apply(line, frame); });
  }
  return moved;
}

// False: there is no room for it yet, or it is too early.
bool Mirror::apply(Line& line, FrameParser& frame) {
  const int rank = frame.head.rank;
  if (rank >= board_.size() || hosts_.is_here(rank)) {
    throw InternalError("another host's leader speaks for rank " + std::to_string(rank) + " of " +
                        std::to_string(board_.size()));
  }
  Ledger& ledger = *ledgers_[static_cast<size_t>(rank)];
  append_incomplete();  // before a cell that is read there is written again
  switch (frame.head.type) {
    case FrameType::kUnnamed:
      return line.gate == Gate::kNone && apply_statement(frame, false);
    case FrameType::kNamed:
      return line.gate == Gate::kNone && apply_statement(frame, true);
    case FrameType::kJoined:
      if (line.gate != Gate::kNone) return false;
      ledger.join(frame.take<uint64_t>());
      return true;
    case FrameType::kDrained: {
      const int32_t last_joined = frame.take<int32_t>();
      if (hosts_.of[static_cast<size_t>(rank)] == 0) last_joined_ = last_joined;
      line.gate = Gate::kJoinEnds;
      return true;
    }
    case FrameType::kConsumed: {
      const Ticket ticket = ledger.latest_named(frame.take_text(), rank);
      if (ticket.tag != 0) ledger.note_consumed_named(ticket);
      return true;
    }
    case FrameType::kWatermark:
      board_.line(rank).watermark.store(frame.take<uint64_t>(), std::memory_order_release);
      return true;
    case FrameType::kLeft: {
      // What it has pushed may still be on its way, over another link than this.
      board_.line(rank).cursor.store(frame.take<uint64_t>(), std::memory_order_release);
      const Attendance attendance = frame.take<Attendance>();
      for (int r = 0; r < board_.size(); ++r) board_.messages_sent(rank, r).store(frame.take<uint64_t>());
      const std::string cause = frame.take_text();
      // A leader is told to have left twice; from the first time on others read it.
      if (!has_left(board_.line(rank))) write_text(board_.cause(rank).text, cause);
      if (line.gate != Gate::kNone) {
        line.left_after.push_back({rank, attendance});  // nobody here misses it before
        return true;
      }
      board_.line(rank).attendance.store(attendance, std::memory_order_release);
      return true;
    }
    case FrameType::kFailed: {
      const auto kind = static_cast<FatalKind>(frame.take<uint32_t>());
      failure_sent_ = true;  // whoever sent it has told everybody
      record_failure(board_, kind, frame.take_text());
      return true;
    }
    case FrameType::kEntry:
      apply_entry(frame);
      return true;
    case FrameType::kBlocked:
      if (line.gate != Gate::kNone) return false;
      apply_block(frame);
      return true;
    case FrameType::kFreeze:
      apply_freeze(frame);
      return true;
    case FrameType::kVote:
      apply_vote(frame);
      return true;
    case FrameType::kVerdict:
      apply_verdict(line, frame);
      return true;
    case FrameType::kSettled:
      line.gate = Gate::kVerdict;
      return true;
  }
  throw InternalError("a frame of another host's leader has an unknown type; do all hosts run one build?");
}

void Mirror::apply_entry(FrameParser& frame) {
  Decision decision;
  decision.algorithm = frame.take<uint32_t>();
  decision.participants = frame.take<RankMask>();
  decision.members.resize(frame.take<uint32_t>());
  const auto& here = hosts_.here();
  const auto witness = std::find_if(here.begin(), here.end(), [&](int r) { return decision.participants.test(r); });
  // Nothing to run, and the statements may be overwritten already.
  if (witness == here.end()) return;
  for (Ticket& member : decision.members) {
    member = frame.take<Ticket>();
    // Slots and generations are each host's own. The entry means what the ranks of this host have stated last under the
    // name: they state no more before they have run it.
    if (const std::string name = frame.take_text(); !name.empty()) member = own_.latest_named(name, *witness);
  }
  decisions_.push_back(std::move(decision));
}

bool Mirror::apply_statement(FrameParser& frame, bool is_named) {
  const int rank = frame.head.rank;
  Ledger& ledger = *ledgers_[static_cast<size_t>(rank)];
  const uint64_t watermark = frame.take<uint64_t>();
  const Signature signature = frame.take<Signature>();
  const std::byte* const payload = frame.take(board_.inline_nbytes());
  Ticket ticket;
  const bool is_logged = !own_.is_quick(signature, is_named);
  if (is_named) {
    const std::string name = frame.take_text();
    bool log_full = false;
    ticket = ledger.state_named(name, signature, payload, board_.inline_nbytes(), is_logged, log_full);
    log_full_ |= log_full;
    if (ticket.tag == 0) return false;
  } else {
    const uint64_t counter = frame.take<uint64_t>();
    if (is_eager(signature, rank, is_named)) {
      uint64_t index;
      std::memcpy(&index, payload, sizeof index);
      const size_t nbytes = static_cast<size_t>(signature.nbytes);
      std::memcpy(board_.eager(rank, static_cast<size_t>(index % kEagerCount)), frame.take(nbytes), nbytes);
    }
    ticket = ledger.state_unnamed(counter, signature, payload, board_.inline_nbytes());
    if (is_logged && !ledger.append(ticket)) log_full_ = true;
  }
  if (is_logged && hosts_.mine == 0) incomplete_[ticket.cell] = {rank, ticket.tag};
  board_.line(rank).watermark.store(watermark, std::memory_order_release);
  return true;
}

// In order, each once all statements about it are here and the log has room.
bool Mirror::repeat_decisions() {
  bool moved = false;
  while (!decisions_.empty()) {
    const Decision& decision = decisions_.front();
    for (const Ticket ticket : decision.members) {
      if (!own_.complete(ticket)) return moved;
    }
    if (!own_.repeat(decision.members, decision.algorithm, decision.participants)) return moved;
    decisions_.pop_front();
    moved = true;
  }
  return moved;
}

}  // namespace rr
