// Mirror: what the other leaders say, written into this host's segment.

#include <algorithm>

#include "base/text.h"
#include "engine/mirror.h"
#include "group/failure.h"

namespace rr {

bool Mirror::receive() {
  bool moved = false;
  for (int host = 0; host < hosts_.count(); ++host) {
    Line& line = lines_[static_cast<size_t>(host)];
    if (line.link == nullptr) continue;
    while (line.in.nbytes_left() < kAhead &&
           line.in.fill([&](std::byte* bytes, size_t nbytes) { return line.link->pull(bytes, nbytes); }))
      moved = true;
    moved |= line.in.parse([&](FrameParser& frame) {
      if (!apply(host, frame)) return false;
      frame.end();
      return true;
    });
  }
  return moved;
}

// A leader speaks for the ranks of its host, about decisions as the leader, and about the log as the first host's.
void Mirror::check_sender(int host, const FrameParser& frame) const {
  const int rank = frame.head.rank;
  frame.expect(rank < board_.size() && hosts_.of[static_cast<size_t>(rank)] == host, "is about a rank of another host");
  switch (frame.head.type) {
    case FrameType::kUnnamed:
    case FrameType::kNamed:
    case FrameType::kConsumed:
    case FrameType::kWatermark:
    case FrameType::kLeft:
    case FrameType::kJoined:
    case FrameType::kBlocked:
      return;
    case FrameType::kEntry:
    case FrameType::kFreeze:
    case FrameType::kVerdict:
      frame.expect(host == 0, "only the leader of the first host sends");
      break;
    case FrameType::kVote:  // for the first host; all are sent it
    case FrameType::kFailed:
    case FrameType::kDrained:
    case FrameType::kSettled:
      break;
    default:
      frame.expect(false, "has an unknown type");
  }
  frame.expect(rank == hosts_.leader(host), "is about another rank than its sender");
}

// False: there is no room for it yet, or it is too early.
bool Mirror::apply(int host, FrameParser& frame) {
  check_sender(host, frame);
  Line& line = lines_[static_cast<size_t>(host)];
  const int rank = frame.head.rank;
  Ledger& ledger = *ledgers_[static_cast<size_t>(rank)];
  append_incomplete();  // before a cell that is read there is written again
  switch (frame.head.type) {
    case FrameType::kUnnamed:
      return line.gate == Gate::kNone && apply_statement(frame, false);
    case FrameType::kNamed:
      return line.gate == Gate::kNone && apply_statement(frame, true);
    case FrameType::kJoined:
      if (line.gate != Gate::kNone) return false;
      frame.expect(board_.line(rank).joined.load() == 0, "says again that a rank has joined");
      ledger.join(frame.take<uint64_t>());
      return true;
    case FrameType::kDrained: {
      const int32_t last_joined = frame.take_up_to<int32_t>(board_.size() - 1);
      frame.expect(last_joined >= -1, "has a negative rank");
      if (hosts_.of[static_cast<size_t>(rank)] == 0) last_joined_ = last_joined;
      line.gate = Gate::kJoinEnds;
      return true;
    }
    case FrameType::kConsumed: {
      const Ticket ticket = ledger.latest_named(frame.take_text(kNameNbytes), rank);
      if (ticket.tag != 0) ledger.note_consumed_named(ticket);
      return true;
    }
    case FrameType::kWatermark:
      board_.line(rank).watermark.store(frame.take<uint64_t>(), std::memory_order_release);
      return true;
    case FrameType::kLeft:
      apply_left(line, frame);
      return true;
    case FrameType::kFailed: {
      const FatalKind kind = frame.take_up_to(FatalKind::kMismatch);
      const std::string text = frame.take_text(sizeof board_.header().failure_text);
      failure_sent_ = true;  // whoever sent it has told everybody
      record_failure(board_, kind, text);
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
  return true;  // check_sender() knows all types
}

void Mirror::apply_left(Line& line, FrameParser& frame) {
  const int rank = frame.head.rank;
  const uint64_t cursor = frame.take<uint64_t>();
  frame.expect(cursor == 0 || cursor == kFinished, "has a value that its field cannot have");
  const Attendance attendance = frame.take_up_to(Attendance::kParted);
  // What it has pushed may still be on its way, over another link than this.
  board_.line(rank).cursor.store(cursor, std::memory_order_release);
  for (int r = 0; r < board_.size(); ++r) board_.messages_sent(rank, r).store(frame.take<uint64_t>());
  const std::string cause = frame.take_text(sizeof board_.cause(rank).text);
  // A leader is told to have left twice; from the first time on others read it.
  if (!has_left(board_.line(rank))) write_text(board_.cause(rank).text, cause);
  if (line.gate != Gate::kNone) {
    line.left_after.push_back({rank, attendance});  // nobody here misses it before
    return;
  }
  board_.line(rank).attendance.store(attendance, std::memory_order_release);
}

void Mirror::apply_entry(FrameParser& frame) {
  Decision decision;
  decision.algorithm = frame.take_up_to(static_cast<uint32_t>(Algo::kPinned));
  decision.participants = frame.take<RankMask>();
  for (int r = board_.size(); r < kMaxRanks; ++r) frame.expect(!decision.participants.test(r), "has unknown ranks");
  decision.members.resize(frame.take_up_to(static_cast<uint32_t>(kEntryMembers)));
  frame.expect(!decision.members.empty(), "has no operation");
  const auto& here = hosts_.here();
  const auto witness = std::find_if(here.begin(), here.end(), [&](int r) { return decision.participants.test(r); });
  for (Ticket& member : decision.members) {
    member = frame.take<Ticket>();
    const std::string name = frame.take_text(kNameNbytes);
    if (name.empty()) {
      frame.expect(member.tag != 0 && member.cell == (member.tag - 1) % kUnnamedCells, "has no such cell");
    } else if (witness != here.end()) {
      // Slots and generations are each host's own. The entry means what the ranks of this host have stated last under
      // the name: they state no more before they have run it.
      member = own_.latest_named(name, *witness);
      frame.expect(member.tag != 0, "has an operation that no rank here has called");
    }
  }
  // Nothing to run, and the statements may be overwritten already.
  if (witness == here.end()) return;
  decisions_.push_back(std::move(decision));
}

bool Mirror::apply_statement(FrameParser& frame, bool is_named) {
  const int rank = frame.head.rank;
  Ledger& ledger = *ledgers_[static_cast<size_t>(rank)];
  const uint64_t watermark = frame.take<uint64_t>();
  const Signature signature = frame.take<Signature>();
  check(signature, frame);
  const std::byte* const payload = frame.take(board_.inline_nbytes());
  Ticket ticket;
  const bool is_logged = !own_.is_quick(signature, is_named);
  if (is_named) {
    const std::string name = frame.take_text(kNameNbytes);
    frame.expect(!name.empty(), "has no name");
    bool log_full = false;
    ticket = ledger.state_named(name, signature, payload, board_.inline_nbytes(), is_logged, log_full);
    log_full_ |= log_full;
    if (ticket.tag == 0) return false;
  } else {
    const uint64_t counter = frame.take<uint64_t>();
    const uint64_t before = board_.head(counter % kUnnamedCells, rank).tag.load(std::memory_order_relaxed);
    frame.expect(counter != UINT64_MAX && before <= counter, "has an operation that was called before");
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

// What a signature may have without this host reading or writing what is not there.
void Mirror::check(const Signature& signature, const FrameParser& frame) const {
  const bool is_known = signature.kind <= Kind::kBarrier && static_cast<int>(signature.dtype) < kDTypeCount &&
                        static_cast<int>(signature.op) < kOpCount && static_cast<int>(signature.wire) < kWireCount &&
                        signature.place <= Place::kDevice;
  frame.expect(is_known, "has a value that its field cannot have");
  frame.expect(signature.root >= -1 && signature.root < board_.size(), "has an unknown root");
  frame.expect(signature.tensors >= 1, "has no tensor");
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
