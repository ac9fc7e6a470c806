#include "relay/host_relay.h"

#include <algorithm>

#include "base/clock.h"
#include "negotiation/failure.h"

namespace rr {
namespace {
// Quick requests carry the watermark; it is sent by itself once so many operations have ended without one. Less than
// half of the eager buffers, so that nobody waits for one that is free.
constexpr uint64_t kWatermarkStep = kEagerCount / 2 - 1;
}  // namespace

HostRelay::HostRelay(const ControlSegment& control, const Hosts& hosts, Negotiation& own,
                     std::vector<std::unique_ptr<Link>> links, double late_s)
    : control_(control),
      hosts_(hosts),
      own_(own),
      links_(std::move(links)),
      own_requests_(control, hosts, own, links_, late_s),
      sequencer_(control, hosts, own, own_requests_, links_),
      decisions_(control, hosts, own, own_requests_, links_),
      sent_(static_cast<size_t>(control.size())) {
  for (int r = 0; r < control.size(); ++r) {
    // That they exist is agreed before there is a group; a rank that cannot go on ends the job.
    if (!hosts.is_here(r)) control.line(r).attendance.store(Attendance::kPresent, std::memory_order_release);
  }
  for (int host = 0; host < links_.count(); ++host) {
    links_[host].in.set_sender("rank " + std::to_string(own.world_rank(hosts.leader(host))));
  }
}

bool HostRelay::progress() {
  if (hosts_.mine == 0) sequencer_.look_at_all();
  collect();
  const bool sent = links_.move();
  bool received = receive();
  if (finish_join() || finish_verdict()) {
    received = true;
    receive();  // what came too early
  }
  if (hosts_.mine == 0) sequencer_.look_at_all();
  const bool repeated = decisions_.repeat();
  if (received || repeated) {
    collect();
    links_.move();
    own_.ring_waiters();
  }
  return sent || received || repeated;
}

bool HostRelay::has_backlog() const {
  if (has_ordered_entries() || sequencer_.is_log_full()) return true;
  return links_.any_of(
      [](const LeaderConnection& connection) { return !connection.out.empty() || !connection.in.empty(); });
}

bool HostRelay::pass_on(bool everybody) {
  if (hosts_.mine == 0) sequencer_.look_at_all();
  collect();
  links_.move();
  receive();
  return have_all_left(everybody) && is_all_sent();
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
  return !links_.any_of([](const LeaderConnection& connection) { return !connection.out.empty(); });
}

// Ranks that are still at work must not wait for what nobody passes on.
void HostRelay::send_close() {
  const int me = hosts_.here().front();
  control_.line(me).attendance.store(Attendance::kClosed, std::memory_order_release);
  if (have_all_left(false)) return;
  send_attendance(me);
  for (int host = 0; host < links_.count(); ++host) {
    if (has_left(control_.line(hosts_.leader(host)))) links_[host].out = FrameWriter();  // nobody would take it
  }
}

bool HostRelay::flush() {
  links_.move();
  return is_all_sent();
}

void HostRelay::collect() {
  if (!is_choked()) collect_ranks();
  if (has_failed(control_) && !failure_sent_) {
    failure_sent_ = true;
    const std::string text = failure_text(control_);
    links_.send(FrameType::kFailed, hosts_.here().front(), [&](FrameWriter& out) {
      out.put(control_.header().failure_kind);
      out.put(text);
    });
  }
}

bool HostRelay::is_choked() const {
  return links_.any_of([](const LeaderConnection& connection) { return connection.out.nbytes_left() > kAhead; });
}

// What the ranks have announced is looked up first: what a rank announced before it joined, or drained, is sent before
// that, and the first host sends an entry of the log before what a rank announced after it had run the entry.
void HostRelay::collect_ranks() {
  const bool drained = have_drained();
  struct Seen {
    uint64_t notes = 0;
    uint64_t blocked_epoch = 0;
    bool has_joined = false;
  };
  std::vector<Seen> seen;
  for (const int r : hosts_.here()) {
    const RankLine& line = control_.line(r);
    const bool joined = line.joined.load(std::memory_order_acquire) != 0;
    const uint64_t epoch = line.blocked_epoch.load(std::memory_order_acquire);
    seen.push_back({control_.outbox(r).written.load(std::memory_order_acquire), epoch, joined});
  }
  if (hosts_.mine == 0) sequencer_.send_log();
  const int me = hosts_.here().front();
  bool has_anyone_joined = false;
  for (size_t i = 0; i < seen.size(); ++i) {
    const int r = hosts_.here()[i];
    collect_notes(r, seen[i].notes);
    Sent& sent = sent_[static_cast<size_t>(r)];
    if (seen[i].has_joined && !sent.has_joined) {
      sent.has_joined = has_anyone_joined = true;
      links_.tell_decisions(me);
      own_requests_.show(r);
      links_.send(FrameType::kJoined, r, [&](FrameWriter& out) {
        out.put(control_.line(r).unnamed.load());
        out.put(control_.line(r).joined.load());
      });
    }
    send_block(r, seen[i].blocked_epoch);
    // Of a rank that has joined, all: no request carries its last ones.
    const uint64_t watermark = control_.line(r).watermark.load(std::memory_order_acquire);
    if (watermark >= sent.watermark + (seen[i].has_joined ? 1 : kWatermarkStep)) {
      sent.watermark = watermark;
      links_.send(FrameType::kWatermark, r, [&](FrameWriter& out) { out.put(watermark); });
    }
    if (control_.line(r).attendance.load() != sent.attendance) {
      if (hosts_.mine == 0) sequencer_.send_log();
      collect_notes(r, control_.outbox(r).written.load(std::memory_order_acquire));
      if (hosts_.mine == 0) sequencer_.send_log();  // with what those notes have completed
      own_requests_.show(r);
      send_attendance(r);
    }
  }
  if (has_anyone_joined) own_requests_.tell_all();  // what only waited for them
  own_requests_.show_late();
  if (links_.decisions_untold() >= control_.capacity()) links_.tell_decisions(me);  // so that they can forget
  if (drained) send_drained();
}

void HostRelay::send_attendance(int rank) {
  const Attendance attendance = control_.line(rank).attendance.load();
  const uint64_t cursor = control_.line(rank).cursor.load(std::memory_order_acquire);
  sent_[static_cast<size_t>(rank)].attendance = attendance;
  links_.tell_decisions(hosts_.here().front());
  links_.send(FrameType::kLeft, rank, [&](FrameWriter& out) {
    out.put(cursor == kFinished ? kFinished : uint64_t{0});
    out.put(attendance);
    for (int r = 0; r < control_.size(); ++r) out.put(control_.messages_sent(rank, r).load());
    out.put(std::string(has_left(attendance) ? control_.cause(rank).text : ""));
  });
}

void HostRelay::collect_notes(int rank, uint64_t end) {
  Outbox& outbox = control_.outbox(rank);
  const uint64_t begin = outbox.read.load(std::memory_order_relaxed);
  if (begin == end) return;
  links_.tell_decisions(hosts_.here().front());  // the rank may have run what was decided, or been refused it
  for (uint64_t at = begin; at != end; ++at) {
    const Note note = control_.note(rank, at);
    const Ticket ticket = {note.request_slot, note.tag};
    if (own_.is_quick(control_.signature(ticket.request_slot, rank), ticket.is_named())) {
      send_quick(rank, ticket);
    } else {
      own_requests_.add(rank, ticket);
      if (hosts_.mine == 0) sequencer_.add(ticket);
    }
    own_requests_.tell(ticket);
    if (hosts_.mine == 0) sequencer_.look(ticket);
  }
  outbox.read.store(end, std::memory_order_release);
  if (end - begin >= control_.note_count()) own_.ring_waiters();
}

bool HostRelay::is_eager(const Signature& signature, int rank, bool is_named) const {
  if (is_named || signature.nbytes <= control_.inline_nbytes()) return false;
  return signature.kind == Kind::kAllreduce || signature.root == rank;
}

void HostRelay::send_quick(int rank, Ticket ticket) {
  const Signature& signature = control_.signature(ticket.request_slot, rank);
  const std::byte* const payload = control_.payload(ticket.request_slot, rank);
  Sent& sent = sent_[static_cast<size_t>(rank)];
  sent.watermark = control_.line(rank).watermark.load(std::memory_order_acquire);
  links_.send(ticket.is_named() ? FrameType::kNamed : FrameType::kUnnamed, rank, [&](FrameWriter& out) {
    out.put(sent.watermark);
    put(out, own_, ticket);
    out.put(signature);
    out.put(payload, control_.inline_nbytes());
    if (!is_eager(signature, rank, ticket.is_named())) return;
    uint64_t index;
    std::memcpy(&index, payload, sizeof index);
    out.put(control_.eager(rank, static_cast<size_t>(index)), static_cast<size_t>(signature.nbytes));
  });
}

}  // namespace rr
