#include "engine/mirror.h"

#include <algorithm>

#include "base/clock.h"
#include "group/failure.h"

namespace rr {
namespace {
// Statements carry the watermark too; it is sent by itself once so many operations have ended without one. Less than
// half of the eager buffers, so that nobody waits for one that is free.
constexpr uint64_t kWatermarkStep = kEagerCount / 2 - 1;
constexpr double kLastWordS = 0.1;  // the other leaders have so long to take it
}  // namespace

Mirror::Mirror(const Board& board, const Hosts& hosts, Ledger& own,
               const std::function<std::unique_ptr<Ledger>(int rank)>& make_ledger,
               std::vector<std::unique_ptr<Link>> control)
    : board_(board), hosts_(hosts), own_(own), lines_(control.size()), sent_(static_cast<size_t>(board.size())) {
  for (int r = 0; r < board.size(); ++r) {
    ledgers_.push_back(hosts.is_here(r) ? nullptr : make_ledger(r));
    if (hosts.is_here(r)) continue;
    // That they exist is agreed before there is a group; a rank that cannot go on ends the job.
    board.line(r).attendance.store(Attendance::kPresent, std::memory_order_release);
  }
  for (size_t host = 0; host < control.size(); ++host) {
    lines_[host].link = std::move(control[host]);
    lines_[host].in.set_sender("rank " + std::to_string(own.world_rank(hosts.leader(static_cast<int>(host)))));
  }
}

bool Mirror::progress() {
  append_incomplete();
  collect();
  const bool sent = move();
  bool received = receive();
  if (finish_join() || finish_verdict()) {
    received = true;
    receive();  // what came too early
  }
  append_incomplete();
  const bool repeated = repeat_decisions();
  if (received || repeated) {
    collect();
    move();
    own_.ring_waiters();
  }
  return sent || received || repeated;
}

bool Mirror::has_backlog() const {
  if (!decisions_.empty() || log_full_) return true;
  return std::any_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return !line.out.empty() || !line.in.empty(); });
}

void Mirror::part(double limit_s, bool everybody) {
  const Deadline deadline = Deadline::after_s(limit_s);
  do {
    collect();
    const bool sent = move();
    if (!receive() && !sent) relax(true);
  } while (!(have_all_left(everybody) && is_all_sent()) && !deadline.passed());
  if (!everybody) say_last_word();
}

bool Mirror::have_all_left(bool everybody) const {
  if (has_failed(board_)) return true;
  for (int r = 0; r < board_.size(); ++r) {
    if (!everybody && r != hosts_.leader(hosts_.of[static_cast<size_t>(r)])) continue;
    if (board_.line(r).attendance.load() == Attendance::kPresent) return false;
  }
  return true;
}

bool Mirror::is_all_sent() const {
  return std::all_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.out.empty(); });
}

// Ranks that are still at work must not wait for what nobody passes on.
void Mirror::say_last_word() {
  const int me = hosts_.here().front();
  board_.line(me).attendance.store(Attendance::kParted, std::memory_order_release);
  if (have_all_left(false)) return;
  send_attendance(me);
  for (size_t host = 0; host < lines_.size(); ++host) {
    // Nobody would take it.
    if (has_left(board_.line(hosts_.leader(static_cast<int>(host))))) lines_[host].out = FrameWriter();
  }
  const Deadline deadline = Deadline::after_s(kLastWordS);
  while (!is_all_sent() && !deadline.passed()) {
    if (!move()) relax(true);
  }
}

void Mirror::collect() {
  if (!is_choked()) collect_ranks();
  if (has_failed(board_) && !failure_sent_) {
    failure_sent_ = true;
    const std::string text = failure_text(board_);
    send(FrameType::kFailed, hosts_.here().front(), [&](FrameWriter& out) {
      out.put(board_.header().failure_kind);
      out.put(text);
    });
  }
}

bool Mirror::is_choked() const {
  return std::any_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.out.nbytes_left() > kAhead; });
}

void Mirror::collect_ranks() {
  // First: what a closed entry is about was stated before, so that those statements are sent before the entry; and
  // what a rank stated before it joined, or drained, is sent before that.
  const uint64_t tail = hosts_.mine == 0 ? close_log() : 0;
  const bool drained = have_drained();
  for (const int r : hosts_.here()) {
    const bool joined = board_.line(r).joined.load(std::memory_order_acquire) != 0;
    const uint64_t block = board_.line(r).blocked_epoch.load(std::memory_order_acquire);
    collect_notes(r);
    Sent& sent = sent_[static_cast<size_t>(r)];
    if (joined && !sent.has_joined) {
      sent.has_joined = true;
      send(FrameType::kJoined, r, [&](FrameWriter& out) { out.put(board_.line(r).unnamed.load()); });
    }
    send_block(r, block);
    // Of a rank that has joined, all: no statement carries its last ones.
    const uint64_t watermark = board_.line(r).watermark.load(std::memory_order_acquire);
    if (watermark >= sent.watermark + (joined ? 1 : kWatermarkStep)) {
      sent.watermark = watermark;
      send(FrameType::kWatermark, r, [&](FrameWriter& out) { out.put(watermark); });
    }
    if (board_.line(r).attendance.load() != sent.attendance) {
      collect_notes(r);
      send_attendance(r);
    }
  }
  if (hosts_.mine == 0) send_log(tail);
  if (drained) send_drained();
}

void Mirror::send_attendance(int rank) {
  const Attendance attendance = board_.line(rank).attendance.load();
  const uint64_t cursor = board_.line(rank).cursor.load(std::memory_order_acquire);
  sent_[static_cast<size_t>(rank)].attendance = attendance;
  send(FrameType::kLeft, rank, [&](FrameWriter& out) {
    out.put(cursor == kFinished ? kFinished : uint64_t{0});
    out.put(attendance);
    for (int r = 0; r < board_.size(); ++r) out.put(board_.messages_sent(rank, r).load());
    out.put(std::string(has_left(attendance) ? board_.cause(rank).text : ""));
  });
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
  const bool was_full = end - outbox.read.load(std::memory_order_relaxed) >= kUnnamedCells + board_.capacity();
  outbox.read.store(end, std::memory_order_release);
  if (was_full) own_.ring_waiters();
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

}  // namespace rr
