#include "relay/rank_news.h"

#include <algorithm>

#include "negotiation/segment/failure.h"

namespace rr {
namespace {
// More takes longer on a link than a message of its own costs (16 us at 1 Gbit/s): it goes while others are late.
constexpr size_t kPatientNbytes = 2 << 10;
}  // namespace

void RankNews::collect() {
  if (!is_choked()) collect_ranks();
  send_failure();
}

void RankNews::send_failure() {
  if (!has_failed(parts_.control) || parts_.is_failure_told) return;
  parts_.is_failure_told = true;
  const std::string text = failure_text(parts_.control);
  parts_.links.send(FrameType::kFailed, parts_.hosts.leader_here(), [&](FrameWriter& out) {
    out.put(parts_.control.header().failure_kind);
    out.put(text);
  });
}

bool RankNews::is_choked() const {
  return parts_.links.any_of([](const LeaderConnection& connection) { return connection.out.nbytes_left() > kAhead; });
}

// How far the ranks have come is looked up first: what a rank announced before it waited, left or drained is sent
// before that, and the first host sends an entry of the log before what a rank announced after it had run the entry.
// A rank that has not attached yet has been there for the others from the beginning: if they were told that it is
// absent, they would wait for the news that it has come, which comes behind what the others here announce then.
void RankNews::collect_ranks() {
  const bool drained = join_.have_drained();
  struct Seen {
    uint64_t blocked_epoch = 0;
    Attendance attendance = Attendance::kPresent;
  };
  std::vector<Seen> seen;
  for (const int r : parts_.hosts.here()) {
    const RankLine& line = parts_.control.line(r);
    seen.push_back({line.blocked_epoch.load(std::memory_order_acquire), line.attendance.load()});
  }
  const uint64_t end = parts_.control.header().notes.load();
  if (parts_.hosts.is_first()) parts_.sequencer.send_log();
  const bool are_all_told = collect_notes(end);
  for (size_t i = 0; i < seen.size() && are_all_told; ++i) {
    const int r = parts_.hosts.here()[i];
    Sent& sent = sent_[static_cast<size_t>(r)];
    deadlock_.send_block(r, seen[i].blocked_epoch);
    // Of a rank that has joined, all: no request carries its last ones.
    const uint64_t watermark = parts_.control.line(r).watermark.load(std::memory_order_acquire);
    if (watermark >= (sent.has_joined ? sent.watermark + 1 : watermark_due(r))) {
      sent.watermark = watermark;
      parts_.links.send(FrameType::kWatermark, r, [&](FrameWriter& out) { out.put(watermark); });
    }
    if (seen[i].attendance != Attendance::kAbsent && seen[i].attendance != sent.attendance) {
      if (parts_.hosts.is_first()) parts_.sequencer.send_log();  // with what those notes have completed
      parts_.own_requests.show(r);
      send_attendance(r);
    }
  }
  parts_.own_requests.show_late();
  if (parts_.links.decisions_untold() >= parts_.control.capacity())
    parts_.links.tell_decisions(parts_.hosts.leader_here());  // so that they can forget
  if (drained && are_all_told) join_.send_drained();
}

uint64_t RankNews::watermark_due(int rank) const { return sent_[static_cast<size_t>(rank)].watermark + kWatermarkStep; }

// A rank that has raised the group's failure may leave at once; who hears of that first takes it for the cause.
void RankNews::send_attendance(int rank) {
  const Attendance attendance = parts_.control.line(rank).attendance.load();
  send_failure();
  const uint64_t cursor = parts_.control.line(rank).cursor.load(std::memory_order_acquire);
  sent_[static_cast<size_t>(rank)].attendance = attendance;
  parts_.links.tell_decisions(parts_.hosts.leader_here());
  parts_.links.send_each(FrameType::kLeft, rank, [&](FrameWriter& out, int host) {
    out.put(cursor == kFinished ? kFinished : uint64_t{0});
    out.put(attendance);
    for (const int r : parts_.hosts.members[static_cast<size_t>(host)]) {
      out.put(parts_.control.messages_sent(rank, r).load());
    }
    out.put(std::string(has_left(attendance) ? parts_.control.cause(rank).text : ""));
  });
}

bool RankNews::collect_notes(uint64_t end) {
  if (parts_.notes_passed_on >= end) return true;
  struct Unread {
    uint64_t number;
    int rank;
    bool operator<(const Unread& other) const { return number < other.number; }
  };
  std::vector<Unread> unread;
  bool is_any_full = false;
  for (const int r : parts_.hosts.here()) {
    const Outbox& outbox = parts_.control.outbox(r);
    const uint64_t written = outbox.written.load(std::memory_order_acquire);
    const uint64_t begin = outbox.read.load(std::memory_order_relaxed);
    for (uint64_t at = begin; at != written; ++at) unread.push_back({parts_.control.note(r, at).number, r});
    is_any_full |= written - begin + 1 >= parts_.control.note_count();
  }
  std::sort(unread.begin(), unread.end());
  if (!unread.empty()) parts_.links.tell_decisions(parts_.hosts.leader_here());  // its rank may have run them
  for (const auto& [number, rank] : unread) {
    if (number != parts_.notes_passed_on || number >= end) break;
    Outbox& outbox = parts_.control.outbox(rank);
    const uint64_t at = outbox.read.load(std::memory_order_relaxed);
    const Note note = parts_.control.note(rank, at);
    note.request_slot == Note::kJoined ? send_joined(rank) : send_request(rank, {note.request_slot, note.tag});
    outbox.read.store(at + 1, std::memory_order_release);
    ++parts_.notes_passed_on;
  }
  if (is_any_full) parts_.negotiation.segment().ring_waiters();
  return parts_.notes_passed_on >= end;
}

void RankNews::send_request(int rank, Ticket ticket) {
  if (parts_.negotiation.requests().is_quick(parts_.control.signature(ticket.request_slot, rank), ticket.is_named())) {
    send_quick(rank, ticket);
  } else {
    parts_.own_requests.add(rank, ticket);
    if (parts_.hosts.is_first()) parts_.sequencer.add(ticket);
  }
  parts_.own_requests.tell(ticket);
  if (parts_.hosts.is_first()) parts_.sequencer.look(ticket);
}

void RankNews::send_joined(int rank) {
  sent_[static_cast<size_t>(rank)].has_joined = true;
  parts_.own_requests.show(rank);
  parts_.links.send(FrameType::kJoined, rank, [&](FrameWriter& out) {
    out.put(parts_.control.line(rank).unnamed.load());
    out.put(parts_.control.line(rank).joined.load());
  });
  parts_.own_requests.tell_all();  // what only waited for it
}

void RankNews::remember(int rank, Ticket ticket) {
  if (do_links_ring_) return;
  if (ticket.is_named()) {
    named_[ticket.request_slot] = ticket.tag;
  } else {
    sent_[static_cast<size_t>(rank)].unnamed = ticket.tag;
  }
}

// Of the unnamed ones, which all announce in their order, the last that all ranks here have announced ends last.
bool RankNews::awaits_others() {
  if (do_links_ring_) return false;
  const Requests& requests = parts_.negotiation.requests();
  const std::vector<int>& here = parts_.hosts.here();
  const auto is_over = [&](Ticket ticket) {
    const auto has_announced = [&](int rank) { return requests.has_announced(ticket, rank); };
    return requests.complete(ticket) || requests.is_overwritten(ticket) ||
           std::none_of(here.begin(), here.end(), has_announced);
  };
  const auto have_all_announced = [&](Ticket ticket) {
    RankMask participants;
    return requests.complete_here(ticket, &participants);
  };
  bool is_any = false;
  for (auto one = named_.begin(); one != named_.end();) {
    const Ticket ticket = {one->first, one->second};
    const bool ends = is_over(ticket);
    is_any |= !ends && have_all_announced(ticket);
    one = ends ? named_.erase(one) : std::next(one);
  }
  uint64_t unnamed = UINT64_MAX;
  for (const int r : here) {
    const Sent& sent = sent_[static_cast<size_t>(r)];
    if (!sent.has_joined) unnamed = std::min(unnamed, sent.unnamed);
  }
  if (is_any || unnamed == 0 || unnamed == UINT64_MAX) return is_any;
  const Ticket last = Ticket::unnamed(unnamed - 1);
  return !is_over(last) && have_all_announced(last);
}

void RankNews::send_quick(int rank, Ticket ticket) {
  remember(rank, ticket);
  const Signature& signature = parts_.control.signature(ticket.request_slot, rank);
  const std::byte* const payload = parts_.control.payload(ticket.request_slot, rank);
  Sent& sent = sent_[static_cast<size_t>(rank)];
  sent.watermark = parts_.control.line(rank).watermark.load(std::memory_order_acquire);
  const FrameType type = ticket.is_named() ? FrameType::kNamed : FrameType::kUnnamed;
  const auto fill = [&](FrameWriter& out) {
    out.put(sent.watermark);
    put(out, parts_.negotiation, ticket);
    out.put(signature);
    out.put(payload, kInlineNbytes);
    if (!has_eager_payload(signature, rank, ticket.is_named())) return;
    uint64_t index;
    std::memcpy(&index, payload, sizeof index);
    out.put(parts_.control.eager(rank, static_cast<size_t>(index)), static_cast<size_t>(signature.nbytes));
  };
  RankMask participants;
  const bool is_long = signature.nbytes > kPatientNbytes && has_eager_payload(signature, rank, ticket.is_named());
  if (is_long || parts_.negotiation.requests().complete_here(ticket, &participants)) {
    parts_.links.send(type, rank, fill);
  } else {
    parts_.links.send_patiently(type, rank, fill);
  }
}

void RankNews::forget_joins() {
  named_.clear();
  for (Sent& sent : sent_) {
    sent.has_joined = false;
    sent.unnamed = 0;
  }
}

}  // namespace rr
