#include "engine/mirror.h"

#include <algorithm>

#include "base/clock.h"
#include "group/failure.h"

namespace rr {
namespace {
// Statements carry the watermark too; it is sent by itself once so many operations have ended without one. Less than
// half of the eager buffers, so that nobody waits for one that is free.
constexpr uint64_t kWatermarkStep = kEagerCount / 2 - 1;
}  // namespace

Mirror::Mirror(const Board& board, const Hosts& hosts, Ledger& own,
               const std::function<std::unique_ptr<Ledger>(int rank)>& make_ledger,
               std::vector<std::unique_ptr<Link>> control)
    : board_(board), hosts_(hosts), own_(own), lines_(control.size()), sent_(static_cast<size_t>(board.size())) {
  for (int r = 0; r < board.size(); ++r) {
    ledgers_.push_back(hosts.is_here(r) ? nullptr : make_ledger(r));
    if (hosts.is_here(r)) continue;
    // That they exist is agreed before there is a group; a rank that cannot go on ends the job.
    board.line(r).attendance.store(static_cast<uint32_t>(Attendance::kPresent), std::memory_order_release);
  }
  for (size_t host = 0; host < control.size(); ++host) lines_[host].link = std::move(control[host]);
}

bool Mirror::progress(bool& log_full) {
  log_full_ = false;
  collect();
  const bool sent = move();
  const bool received = receive();
  const bool repeated = repeat_decisions();
  if (received || repeated) {
    collect();
    move();
    own_.ring_waiters();
  }
  log_full = log_full_;
  return sent || received || repeated;
}

bool Mirror::has_backlog() const {
  if (!decisions_.empty()) return true;
  return std::any_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return !line.out.empty() || !line.in.empty(); });
}

void Mirror::part(double limit_s) {
  const Deadline deadline = Deadline::after_s(limit_s);
  const auto parted = [&] {
    for (int host = 0; host < hosts_.count(); ++host) {
      const int leader = hosts_.leader(host);
      const bool left = board_.line(leader).attendance.load() == static_cast<uint32_t>(Attendance::kShutDown);
      if (!left && !has_failed(board_)) return false;
    }
    return std::all_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.out.empty(); });
  };
  collect();
  while (!parted() && !deadline.passed()) {
    const bool sent = move();
    if (!receive() && !sent) relax(true);
  }
}

template <class Fill>
void Mirror::send(FrameType type, int rank, Fill fill) {
  for (Line& line : lines_) {
    if (line.link == nullptr) continue;
    line.out.begin(type, rank);
    fill(line.out);
    line.out.end();
  }
}

void Mirror::collect() {
  // First: what a closed entry is about was stated before, so that those statements are sent before the entry.
  const uint64_t tail = hosts_.mine == 0 ? close_log() : 0;
  for (const int r : hosts_.here()) {
    collect_notes(r);
    Sent& sent = sent_[static_cast<size_t>(r)];
    const uint64_t watermark = board_.line(r).watermark.load(std::memory_order_acquire);
    if (watermark >= sent.watermark + kWatermarkStep) {
      sent.watermark = watermark;
      send(FrameType::kWatermark, r, [&](FrameWriter& out) { out.put(watermark); });
    }
    const bool left = board_.line(r).attendance.load() == static_cast<uint32_t>(Attendance::kShutDown);
    if (left && !sent.has_left) {
      sent.has_left = true;
      collect_notes(r);
      const uint64_t cursor = board_.line(r).cursor.load(std::memory_order_acquire);
      send(FrameType::kLeft, r, [&](FrameWriter& out) { out.put(cursor); });
    }
  }
  if (hosts_.mine == 0) send_log(tail);
  if (has_failed(board_) && !failure_sent_) {
    failure_sent_ = true;
    const std::string text = failure_text(board_);
    send(FrameType::kFailed, hosts_.here().front(), [&](FrameWriter& out) {
      out.put(board_.header().failure_kind);
      out.put(text);
    });
  }
}

void Mirror::collect_notes(int rank) {
  Outbox& outbox = board_.outbox(rank);
  uint64_t at = outbox.read.load(std::memory_order_relaxed);
  const uint64_t end = outbox.written.load(std::memory_order_acquire);
  for (; at != end; ++at) {
    const Note note = board_.note(rank, at);
    if (note.is_consumed != 0) {
      const std::string name = own_.stored_name({note.cell, note.tag});
      send(FrameType::kConsumed, rank, [&](FrameWriter& out) { out.put(name); });
    } else {
      send_statement(rank, note);
    }
  }
  outbox.read.store(end, std::memory_order_release);
}

bool Mirror::is_eager(const Signature& signature, int rank, bool is_named) const {
  if (!own_.is_quick(signature, is_named) || signature.nbytes <= board_.inline_nbytes()) return false;
  return signature.kind == Kind::kAllreduce || signature.root == rank;
}

void Mirror::send_statement(int rank, const Note& note) {
  const bool is_named = note.cell >= kUnnamedCells;
  const Signature& signature = board_.signature(note.cell, rank);
  const std::byte* const payload = board_.payload(note.cell, rank);
  Sent& sent = sent_[static_cast<size_t>(rank)];
  sent.watermark = board_.line(rank).watermark.load(std::memory_order_acquire);
  send(is_named ? FrameType::kNamed : FrameType::kUnnamed, rank, [&](FrameWriter& out) {
    out.put(sent.watermark);
    out.put(signature);
    out.put(payload, board_.inline_nbytes());
    if (is_named) {
      out.put(own_.stored_name({note.cell, note.tag}));
      return;
    }
    out.put(note.tag - 1);
    if (!is_eager(signature, rank, is_named)) return;
    uint64_t index;
    std::memcpy(&index, payload, sizeof index);
    out.put(board_.eager(rank, static_cast<size_t>(index)), static_cast<size_t>(signature.nbytes));
  });
}

// Closes the entries of the first host's log as soon as they are seen: whatever is complete by then shares one.
uint64_t Mirror::close_log() {
  const uint64_t tail = board_.header().log_tail.load(std::memory_order_acquire);
  for (uint64_t position = log_sent_; position < tail; ++position) {
    Entry& entry = board_.entry(position);
    if (entry.closed.load(std::memory_order_acquire) == 0) own_.close(entry);
  }
  return tail;
}

void Mirror::send_log(uint64_t tail) {
  for (; log_sent_ < tail; ++log_sent_) {
    const Entry& entry = board_.entry(log_sent_);
    send(FrameType::kEntry, hosts_.here().front(), [&](FrameWriter& out) {
      out.put(entry.algorithm);
      out.put(entry.participants);
      out.put(entry.members);
      for (uint32_t i = 0; i < entry.members; ++i) {
        const Ticket ticket = {entry.member[i].cell, entry.member[i].tag};
        const bool is_named = ticket.cell >= kUnnamedCells;
        out.put(ticket);
        out.put(is_named ? own_.stored_name(ticket) : std::string());
      }
    });
  }
}

bool Mirror::move() {
  bool moved = false;
  for (Line& line : lines_) {
    if (line.link == nullptr) continue;
    moved |= line.out.drain([&](const std::byte* bytes, size_t nbytes) { return line.link->push(bytes, nbytes); });
  }
  return moved;
}

bool Mirror::receive() {
  bool moved = false;
  for (Line& line : lines_) {
    if (line.link == nullptr) continue;
    while (line.in.fill([&](std::byte* bytes, size_t nbytes) { return line.link->pull(bytes, nbytes); })) moved = true;
    moved |= line.in.parse([this](FrameParser& frame) { return apply(frame); });
  }
  return moved;
}

// False: there is no room for it yet.
bool Mirror::apply(FrameParser& frame) {
  const int rank = frame.head.rank;
  if (rank >= board_.size() || hosts_.is_here(rank)) {
    throw InternalError("another host's leader speaks for rank " + std::to_string(rank) + " of " +
                        std::to_string(board_.size()));
  }
  Ledger& ledger = *ledgers_[static_cast<size_t>(rank)];
  switch (frame.head.type) {
    case FrameType::kUnnamed:
      return apply_statement(frame, false);
    case FrameType::kNamed:
      return apply_statement(frame, true);
    case FrameType::kConsumed: {
      const Ticket ticket = ledger.latest_named(frame.take_text());
      if (ticket.tag != 0) ledger.note_consumed_named(ticket);
      return true;
    }
    case FrameType::kWatermark:
      board_.line(rank).watermark.store(frame.take<uint64_t>(), std::memory_order_release);
      return true;
    case FrameType::kLeft:
      // What it has pushed may still be on its way, over another link than this.
      board_.line(rank).cursor.store(frame.take<uint64_t>(), std::memory_order_release);
      board_.line(rank).attendance.store(static_cast<uint32_t>(Attendance::kShutDown), std::memory_order_release);
      return true;
    case FrameType::kFailed: {
      const auto kind = static_cast<FatalKind>(frame.take<uint32_t>());
      failure_sent_ = true;  // whoever sent it has told everybody
      record_failure(board_, kind, frame.take_text());
      return true;
    }
    case FrameType::kEntry: {
      Decision decision;
      decision.algorithm = frame.take<uint32_t>();
      decision.participants = frame.take<RankMask>();
      decision.members.resize(frame.take<uint32_t>());
      for (Ticket& member : decision.members) {
        member = frame.take<Ticket>();
        // Slots and generations are each host's own; see has_sent().
        if (const std::string name = frame.take_text(); !name.empty()) member = ledger.latest_named(name);
      }
      decisions_.push_back(std::move(decision));
      return true;
    }
  }
  throw InternalError("a frame of another host's leader has an unknown type; do all hosts run one build?");
}

bool Mirror::apply_statement(FrameParser& frame, bool is_named) {
  const int rank = frame.head.rank;
  Ledger& ledger = *ledgers_[static_cast<size_t>(rank)];
  const uint64_t watermark = frame.take<uint64_t>();
  const Signature signature = frame.take<Signature>();
  const std::byte* const payload = frame.take(board_.inline_nbytes());
  Ticket ticket;
  bool log_full = false;
  if (is_named) {
    const std::string name = frame.take_text();
    ticket =
        ledger.state_named(name, signature, payload, board_.inline_nbytes(), !own_.is_quick(signature, true), log_full);
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
    if (!own_.is_quick(signature, false)) log_full = !ledger.append(ticket);
  }
  log_full_ |= log_full;
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
