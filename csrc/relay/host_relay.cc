#include "relay/host_relay.h"

#include <algorithm>

#include "base/clock.h"
#include "negotiation/failure.h"

namespace rr {
namespace {
// Requests carry the watermark too; it is sent by itself once so many operations have ended without one. Less than
// half of the eager buffers, so that nobody waits for one that is free.
constexpr uint64_t kWatermarkStep = kEagerCount / 2 - 1;
constexpr double kCloseFlushS = 0.1;  // the other leaders have so long to take the frame kLeft with kClosed
}  // namespace

HostRelay::HostRelay(const ControlSegment& control, const Hosts& hosts, Negotiation& own,
                     const std::function<std::unique_ptr<Negotiation>(int rank)>& make_negotiation,
                     std::vector<std::unique_ptr<Link>> links)
    : control_(control),
      hosts_(hosts),
      own_(own),
      connections_(links.size()),
      sent_(static_cast<size_t>(control.size())) {
  for (int r = 0; r < control.size(); ++r) {
    negotiations_.push_back(hosts.is_here(r) ? nullptr : make_negotiation(r));
    if (hosts.is_here(r)) continue;
    // That they exist is agreed before there is a group; a rank that cannot go on ends the job.
    control.line(r).attendance.store(Attendance::kPresent, std::memory_order_release);
  }
  for (size_t host = 0; host < links.size(); ++host) {
    connections_[host].link = std::move(links[host]);
    connections_[host].in.set_sender("rank " + std::to_string(own.world_rank(hosts.leader(static_cast<int>(host)))));
  }
}

bool HostRelay::progress() {
  append_incomplete();
  collect();
  const bool sent = move();
  bool received = receive();
  if (finish_join() || finish_verdict()) {
    received = true;
    receive();  // what came too early
  }
  append_incomplete();
  const bool repeated = repeat_ordered();
  if (received || repeated) {
    collect();
    move();
    own_.ring_waiters();
  }
  return sent || received || repeated;
}

bool HostRelay::has_backlog() const {
  if (!ordered_.empty() || log_full_) return true;
  return std::any_of(connections_.begin(), connections_.end(), [](const LeaderConnection& connection) {
    return !connection.out.empty() || !connection.in.empty();
  });
}

void HostRelay::close(double limit_s, bool everybody) {
  const Deadline deadline = Deadline::after_s(limit_s);
  do {
    collect();
    const bool sent = move();
    if (!receive() && !sent) relax(true);
  } while (!(have_all_left(everybody) && is_all_sent()) && !deadline.passed());
  if (!everybody) send_close();
}

bool HostRelay::have_all_left(bool everybody) const {
  if (has_failed(control_)) return true;
  for (int r = 0; r < control_.size(); ++r) {
    if (!everybody && r != hosts_.leader(hosts_.of[static_cast<size_t>(r)])) continue;
    if (control_.line(r).attendance.load() == Attendance::kPresent) return false;
  }
  return true;
}

bool HostRelay::is_all_sent() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const LeaderConnection& connection) { return connection.out.empty(); });
}

// Ranks that are still at work must not wait for what nobody passes on.
void HostRelay::send_close() {
  const int me = hosts_.here().front();
  control_.line(me).attendance.store(Attendance::kClosed, std::memory_order_release);
  if (have_all_left(false)) return;
  send_attendance(me);
  for (size_t host = 0; host < connections_.size(); ++host) {
    // Nobody would take it.
    if (has_left(control_.line(hosts_.leader(static_cast<int>(host))))) connections_[host].out = FrameWriter();
  }
  const Deadline deadline = Deadline::after_s(kCloseFlushS);
  while (!is_all_sent() && !deadline.passed()) {
    if (!move()) relax(true);
  }
}

void HostRelay::collect() {
  if (!is_choked()) collect_ranks();
  if (has_failed(control_) && !failure_sent_) {
    failure_sent_ = true;
    const std::string text = failure_text(control_);
    send(FrameType::kFailed, hosts_.here().front(), [&](FrameWriter& out) {
      out.put(control_.header().failure_kind);
      out.put(text);
    });
  }
}

bool HostRelay::is_choked() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const LeaderConnection& connection) { return connection.out.nbytes_left() > kAhead; });
}

void HostRelay::collect_ranks() {
  // First: what a closed entry is about was announced before, so that those requests are sent before the entry; and
  // what a rank announced before it joined, or drained, is sent before that.
  const uint64_t tail = hosts_.mine == 0 ? close_log() : 0;
  const bool drained = have_drained();
  for (const int r : hosts_.here()) {
    const bool joined = control_.line(r).joined.load(std::memory_order_acquire) != 0;
    const uint64_t block = control_.line(r).blocked_epoch.load(std::memory_order_acquire);
    collect_notes(r);
    Sent& sent = sent_[static_cast<size_t>(r)];
    if (joined && !sent.has_joined) {
      sent.has_joined = true;
      send(FrameType::kJoined, r, [&](FrameWriter& out) { out.put(control_.line(r).unnamed.load()); });
    }
    send_block(r, block);
    // Of a rank that has joined, all: no request carries its last ones.
    const uint64_t watermark = control_.line(r).watermark.load(std::memory_order_acquire);
    if (watermark >= sent.watermark + (joined ? 1 : kWatermarkStep)) {
      sent.watermark = watermark;
      send(FrameType::kWatermark, r, [&](FrameWriter& out) { out.put(watermark); });
    }
    if (control_.line(r).attendance.load() != sent.attendance) {
      collect_notes(r);
      send_attendance(r);
    }
  }
  if (hosts_.mine == 0) send_log(tail);
  if (drained) send_drained();
}

void HostRelay::send_attendance(int rank) {
  const Attendance attendance = control_.line(rank).attendance.load();
  const uint64_t cursor = control_.line(rank).cursor.load(std::memory_order_acquire);
  sent_[static_cast<size_t>(rank)].attendance = attendance;
  send(FrameType::kLeft, rank, [&](FrameWriter& out) {
    out.put(cursor == kFinished ? kFinished : uint64_t{0});
    out.put(attendance);
    for (int r = 0; r < control_.size(); ++r) out.put(control_.messages_sent(rank, r).load());
    out.put(std::string(has_left(attendance) ? control_.cause(rank).text : ""));
  });
}

void HostRelay::collect_notes(int rank) {
  Outbox& outbox = control_.outbox(rank);
  uint64_t at = outbox.read.load(std::memory_order_relaxed);
  const uint64_t end = outbox.written.load(std::memory_order_acquire);
  for (; at != end; ++at) {
    const Note note = control_.note(rank, at);
    if (note.is_consumed != 0) {
      const std::string name = own_.stored_name({note.request_slot, note.tag});
      send(FrameType::kConsumed, rank, [&](FrameWriter& out) { out.put(name); });
    } else {
      send_request(rank, note);
    }
  }
  const bool was_full = end - outbox.read.load(std::memory_order_relaxed) >= kUnnamedSlots + control_.capacity();
  outbox.read.store(end, std::memory_order_release);
  if (was_full) own_.ring_waiters();
}

bool HostRelay::is_eager(const Signature& signature, int rank, bool is_named) const {
  if (!own_.is_quick(signature, is_named) || signature.nbytes <= control_.inline_nbytes()) return false;
  return signature.kind == Kind::kAllreduce || signature.root == rank;
}

void HostRelay::send_request(int rank, const Note& note) {
  const bool is_named = note.request_slot >= kUnnamedSlots;
  const Signature& signature = control_.signature(note.request_slot, rank);
  const std::byte* const payload = control_.payload(note.request_slot, rank);
  Sent& sent = sent_[static_cast<size_t>(rank)];
  sent.watermark = control_.line(rank).watermark.load(std::memory_order_acquire);
  send(is_named ? FrameType::kNamed : FrameType::kUnnamed, rank, [&](FrameWriter& out) {
    out.put(sent.watermark);
    out.put(signature);
    out.put(payload, control_.inline_nbytes());
    if (is_named) {
      out.put(own_.stored_name({note.request_slot, note.tag}));
      return;
    }
    out.put(note.tag - 1);
    if (!is_eager(signature, rank, is_named)) return;
    uint64_t index;
    std::memcpy(&index, payload, sizeof index);
    out.put(control_.eager(rank, static_cast<size_t>(index)), static_cast<size_t>(signature.nbytes));
  });
}

// Closes the entries of the first host's log as soon as they are seen: whatever is complete by then shares one.
uint64_t HostRelay::close_log() {
  const uint64_t tail = control_.header().log_tail.load(std::memory_order_acquire);
  for (uint64_t position = log_sent_; position < tail; ++position) {
    Entry& entry = control_.entry(position);
    if (entry.closed.load(std::memory_order_acquire) == 0) own_.close(entry);
  }
  return tail;
}

void HostRelay::send_log(uint64_t tail) {
  for (; log_sent_ < tail; ++log_sent_) {
    const Entry& entry = control_.entry(log_sent_);
    send(FrameType::kEntry, hosts_.here().front(), [&](FrameWriter& out) {
      out.put(entry.algorithm);
      out.put(entry.participants);
      out.put(entry.members);
      for (uint32_t i = 0; i < entry.members; ++i) {
        const Ticket ticket = {entry.member[i].request_slot, entry.member[i].tag};
        const bool is_named = ticket.request_slot >= kUnnamedSlots;
        out.put(ticket);
        out.put(is_named ? own_.stored_name(ticket) : std::string());
      }
    });
  }
}

bool HostRelay::move() {
  bool moved = false;
  for (LeaderConnection& connection : connections_) {
    if (connection.link == nullptr) continue;
    moved |= connection.out.drain(
        [&](const std::byte* bytes, size_t nbytes) { return connection.link->push(bytes, nbytes); });
  }
  return moved;
}

}  // namespace rr
