#include "relay/host_relay.h"

#include "base/errors.h"
#include "negotiation/segment/failure.h"

namespace rr {
namespace {

// While this rank leaves: a lost host hears nothing more, and the others do.
template <class Work>
void unless_lost(Work work) {
  try {
    work();
  } catch (const PeerLostError&) {
  }
}

}  // namespace

HostRelay::HostRelay(const ControlSegment& control, const Hosts& hosts, Negotiation& negotiation,
                     std::vector<std::unique_ptr<Link>> links, double late_s, Recorder* recorder,
                     const RecordedGroup& recorded_group, bool do_links_ring)
    : parts_(control, hosts, negotiation, std::move(links), late_s),
      deadlock_(parts_),
      join_(parts_),
      news_(parts_, deadlock_, join_, do_links_ring),
      status_(control, hosts, parts_.links),
      clock_(hosts, parts_.links, recorder, recorded_group),
      shown_(control, hosts, parts_.links, recorder != nullptr),
      receiver_(parts_, deadlock_, status_, clock_, shown_) {
  for (int r = 0; r < control.size(); ++r) {
    // That they exist is agreed before there is a group; a rank that cannot go on ends the job.
    if (!hosts.is_here(r)) control.line(r).attendance.store(Attendance::kPresent, std::memory_order_release);
  }
  for (int host = 0; host < parts_.links.count(); ++host) {
    const std::string leader = std::to_string(negotiation.segment().world_rank(hosts.leader(host)));
    parts_.links[host].in.set_sender("rank " + leader);
  }
}

void HostRelay::collect() {
  shown_.collect();
  news_.collect();
  status_.collect();
  clock_.collect();
}

bool HostRelay::progress() {
  if (parts_.hosts.is_first()) parts_.sequencer.look_at_all();
  collect();
  const bool sent = parts_.links.move();
  bool received = receiver_.receive();
  note_killed_leaders();
  const bool have_all_joined = join_.finish();
  if (have_all_joined) news_.forget_joins();
  if (have_all_joined || deadlock_.finish()) {
    received = true;
    receiver_.receive();  // what came too early
  }
  if (parts_.hosts.is_first()) parts_.sequencer.look_at_all();
  const bool repeated = parts_.decisions.repeat();
  if (received || repeated) {
    collect();
    parts_.links.move();
    parts_.negotiation.segment().ring_waiters();
  }
  return sent || received || repeated;
}

// A leader that was killed while it left could not say that it passes nothing on any more. What it had said before is
// read first.
void HostRelay::note_killed_leaders() {
  for (int host = 0; host < parts_.links.count(); ++host) {
    const LeaderConnection& connection = parts_.links[host];
    if (connection.link == nullptr || !connection.link->has_ended() || !connection.is_drained) continue;
    if (!connection.in.has_frame() && connection.left_after.empty())
      mark_closed(parts_.control.line(parts_.hosts.leader(host)));
  }
}

bool HostRelay::waits_for_room() const {
  // Nobody rings for a note that has held up others.
  if (!parts_.are_notes_passed_on() || has_ordered_entries() || parts_.sequencer.is_log_full()) return true;
  return parts_.links.any_of([](const LeaderConnection& connection) { return !connection.in.empty(); });
}

bool HostRelay::has_backlog() const {
  return waits_for_room() ||
         parts_.links.any_of([](const LeaderConnection& connection) { return !connection.out.empty(); });
}

bool HostRelay::pass_on(bool everybody) {
  if (parts_.hosts.is_first()) parts_.sequencer.look_at_all();
  news_.collect();
  unless_lost([this] { parts_.links.move(); });
  bool received = false;
  unless_lost([&] { received = receiver_.receive(); });
  note_killed_leaders();
  if (parts_.decisions.repeat() || received) parts_.negotiation.segment().ring_waiters();
  const bool is_all_told = parts_.are_notes_passed_on() || has_failed(parts_.control);
  return have_all_left(everybody) && is_all_told && is_all_sent();
}

bool HostRelay::have_all_left(bool everybody) const {
  if (has_failed(parts_.control)) return true;
  for (int r = 0; r < parts_.control.size(); ++r) {
    if (!everybody && r != parts_.hosts.leader(parts_.hosts.of[static_cast<size_t>(r)])) continue;
    if (parts_.control.line(r).attendance.load() == Attendance::kPresent) return false;
  }
  return true;
}

bool HostRelay::is_all_sent() const {
  return !parts_.links.any_of([](const LeaderConnection& connection) {
    return !connection.out.empty() && !connection.is_broken && !connection.link->has_ended();
  });
}

// Ranks that are still at work must not wait for what nobody passes on.
void HostRelay::send_close() {
  const int me = parts_.hosts.leader_here();
  parts_.control.line(me).attendance.store(Attendance::kClosed, std::memory_order_release);
  if (have_all_left(false)) return;
  news_.send_attendance(me);
  for (int host = 0; host < parts_.links.count(); ++host) {
    if (has_left(parts_.control.line(parts_.hosts.leader(host))))
      parts_.links[host].out = FrameWriter();  // nobody would take it
  }
}

bool HostRelay::flush() {
  unless_lost([this] { parts_.links.move(); });
  return is_all_sent();
}

}  // namespace rr
