#include "relay/receiver.h"

#include <cstring>

#include "base/text.h"
#include "negotiation/segment/failure.h"

namespace rr {

bool Receiver::receive() {
  bool moved = false;
  parts_.links.for_each([&](int host) {
    LeaderConnection& connection = parts_.links[host];
    size_t come = FrameReader::kAtOnce;
    while (come == FrameReader::kAtOnce && connection.in.has_room()) {  // fewer: there are no more
      come = connection.in.fill([&](std::byte* bytes, size_t nbytes) { return connection.link->pull(bytes, nbytes); });
      moved |= come != 0;
    }
    connection.is_drained = come == 0;
    moved |= connection.in.parse([&](FrameParser& frame) {
      if (!apply(host, frame)) return false;
      frame.end();
      return true;
    });
    look_ahead(host);
  });
  return moved;
}

// At frames that wait behind one for which there is no room, or that is too early. A failure is heard whatever waits.
// The first host's decisions are taken up: what waits may need what another host's leader said after it had taken them
// up.
void Receiver::look_ahead(int host) {
  FrameReader& in = parts_.links[host].in;
  if (in.empty()) return;
  in.look_ahead(FrameReader::kForFailures, [&](FrameParser& frame) {
    if (frame.head.type != FrameType::kFailed) return true;
    check_sender(host, frame);
    apply_failure(frame);
    frame.end();
    return true;
  });
  if (host != 0) return;
  in.look_ahead(FrameReader::kForDecisions, [&](FrameParser& frame) {
    const FrameType type = frame.head.type;
    if (type != FrameType::kDecided && type != FrameType::kEntry && type != FrameType::kRefused) return true;
    check_sender(host, frame);
    if (!may_decide() || parts_.decisions.apply(frame) == 0) return false;
    frame.end();
    return true;
  });
}

// What the first host decides after a verdict waits until the requests here are withdrawn: the same may have been
// announced again.
bool Receiver::may_decide() const { return parts_.links[0].phase != Phase::kVerdict; }

// A leader sends frames about the ranks of its host. Frames about the host as a whole name the leader itself. Only the
// first host's leader makes decisions, and asks for and decides a verdict.
void Receiver::check_sender(int host, const FrameParser& frame) const {
  const int rank = frame.head.rank;
  frame.expect(rank < parts_.control.size() && parts_.hosts.of[static_cast<size_t>(rank)] == host,
               "is about a rank of another host");
  switch (frame.head.type) {
    case FrameType::kUnnamed:
    case FrameType::kNamed:
    case FrameType::kWatermark:
    case FrameType::kLeft:
    case FrameType::kJoined:
    case FrameType::kBlocked:
    case FrameType::kStatus:
    case FrameType::kShown:
      return;
    case FrameType::kEntry:
    case FrameType::kRefused:
    case FrameType::kFreeze:
    case FrameType::kVerdict:
    case FrameType::kClock:
    case FrameType::kShownTaken:
      frame.expect(host == 0, "only the leader of the first host sends");
      break;
    case FrameType::kLogged:
    case FrameType::kDecided:
    case FrameType::kVote:  // for the first host; all are sent it
    case FrameType::kFailed:
    case FrameType::kDrained:
    case FrameType::kSettled:
    case FrameType::kStatusAsked:
    case FrameType::kClockAsked:
      break;
    default:
      frame.expect(false, "has an unknown type");
  }
  frame.expect(rank == parts_.hosts.leader(host), "is about another rank than its sender");
}

// False: there is no room for it yet, or it is too early.
bool Receiver::apply(int host, FrameParser& frame) {
  check_sender(host, frame);
  LeaderConnection& connection = parts_.links[host];
  const int rank = frame.head.rank;
  const bool has_come_as_far = parts_.hosts.is_first() || host == 0 || connection.decisions <= parts_.decisions.count();
  if (!has_come_as_far) return false;
  if (parts_.hosts.is_first())
    parts_.sequencer.look_at_all();  // before a request slot that is read there is written again
  switch (frame.head.type) {
    case FrameType::kUnnamed:
      return connection.phase == Phase::kNone && apply_quick(frame, false);
    case FrameType::kNamed:
      return connection.phase == Phase::kNone && apply_quick(frame, true);
    case FrameType::kLogged:
      return connection.phase == Phase::kNone && apply_logged(host, frame);
    case FrameType::kDecided:
    case FrameType::kEntry:
    case FrameType::kRefused:
      return apply_decision(host, frame);
    case FrameType::kJoined:
      if (connection.phase != Phase::kNone) return false;
      apply_joined(frame);
      return true;
    case FrameType::kDrained:
      if (connection.phase != Phase::kNone) return false;
      connection.phase = Phase::kJoinEnds;
      return true;
    case FrameType::kWatermark:
      // The verdict looks at it: what the rank has withdrawn since is not what it has consumed.
      if (connection.phase == Phase::kVerdict) return false;
      parts_.control.line(rank).watermark.store(take_counter(frame), std::memory_order_release);
      return true;
    case FrameType::kLeft:
      apply_left(connection, frame);
      return true;
    case FrameType::kFailed:
      apply_failure(frame);
      return true;
    case FrameType::kBlocked:
      if (connection.phase != Phase::kNone) return false;
      deadlock_.apply_block(frame);
      return true;
    case FrameType::kFreeze:
      if (connection.phase != Phase::kNone) return false;
      deadlock_.apply_freeze(frame);
      return true;
    case FrameType::kVote:
      deadlock_.apply_vote(frame);
      return true;
    case FrameType::kVerdict:
      if (connection.phase != Phase::kNone) return false;
      deadlock_.apply_verdict(connection, frame);
      return true;
    case FrameType::kSettled:
      if (connection.phase != Phase::kNone) return false;
      connection.phase = Phase::kVerdict;
      return true;
    case FrameType::kStatusAsked:
      status_.apply_question(host, frame);
      return true;
    case FrameType::kStatus:
      status_.apply_answer(frame);
      return true;
    case FrameType::kClockAsked:
      clock_.apply_question(host, frame);
      return true;
    case FrameType::kClock:
      clock_.apply_answer(frame);
      return true;
    case FrameType::kShown:
      shown_.apply(host, frame);
      return true;
    case FrameType::kShownTaken:
      shown_.apply_answer(frame);
      return true;
  }
  return true;  // check_sender() knows all types
}

void Receiver::apply_joined(FrameParser& frame) {
  const int rank = frame.head.rank;
  frame.expect(parts_.control.line(rank).joined.load() == 0, "says again that a rank has joined");
  const uint64_t unnamed_counter = take_counter(frame);
  const auto stamp = frame.take_up_to<uint32_t>(static_cast<uint32_t>(parts_.control.size()));
  frame.expect(stamp != 0, "has a join without a stamp");
  parts_.negotiation.joins().record(rank, unnamed_counter, stamp);
}

void Receiver::apply_left(LeaderConnection& connection, FrameParser& frame) {
  const int rank = frame.head.rank;
  const uint64_t cursor = frame.take<uint64_t>();
  frame.expect(cursor == 0 || cursor == kFinished, "has a value that its field cannot have");
  const Attendance attendance = frame.take_up_to(Attendance::kClosed);
  frame.expect(attendance != Attendance::kAbsent, "has a value that its field cannot have");
  // What it has pushed may still be on its way, over another link than this.
  parts_.control.line(rank).cursor.store(cursor, std::memory_order_release);
  for (const int r : parts_.hosts.here()) parts_.control.messages_sent(rank, r).store(frame.take<uint64_t>());
  const std::string cause = frame.take_text(sizeof parts_.control.cause(rank).text);
  // A leader is told to have left twice; from the first time on others read it.
  if (!has_left(parts_.control.line(rank))) write_text(parts_.control.cause(rank).text, cause);
  if (connection.phase != Phase::kNone) {
    connection.left_after.push_back({rank, attendance});  // nobody here misses it before
    return;
  }
  parts_.control.line(rank).attendance.store(attendance, std::memory_order_release);
}

void Receiver::apply_failure(FrameParser& frame) {
  const FatalKind kind = frame.take_up_to(FatalKind::kMismatch);
  const std::string text = frame.take_text(sizeof parts_.control.header().failure_text);
  parts_.is_failure_told = true;  // whoever sent it has told everybody
  record_failure(parts_.control, kind, text);
}

bool Receiver::apply_decision(int host, FrameParser& frame) {
  if (host == 0 && !may_decide()) return false;
  const uint64_t number = host == 0 ? parts_.decisions.apply(frame) : frame.take<uint64_t>();
  frame.expect(host == 0 || (number != 0 && number >= parts_.links[host].decisions), "is out of order");
  if (number == 0) return false;
  parts_.links[host].decisions = number;
  return true;
}

bool Receiver::apply_quick(FrameParser& frame, bool is_named) {
  // Until then nobody here knows what is quick.
  if (parts_.control.header().tuned.load(std::memory_order_acquire) != kTuned) return false;
  const int rank = frame.head.rank;
  const uint64_t watermark = take_counter(frame);
  const OperationName operation = take_operation(frame);
  const Signature signature = frame.take<Signature>();
  check(signature, parts_.control.size(), frame);
  frame.expect(operation.is_named() == is_named, is_named ? "has no name" : "has a name");
  frame.expect(parts_.negotiation.requests().is_quick(signature, is_named), "has too much data");
  const std::byte* const payload = frame.take(kInlineNbytes);
  Ticket ticket;
  if (is_named) {
    ticket = parts_.negotiation.record_named(operation.name, {{rank, signature, payload, kInlineNbytes}});
    if (ticket.tag == 0) return false;
  } else {
    ticket = Ticket::unnamed(operation.counter);
    frame.expect(!parts_.negotiation.requests().has_announced_since(ticket, rank),
                 "has an operation that was called before");
    if (has_eager_payload(signature, rank, is_named)) {
      uint64_t index;
      std::memcpy(&index, payload, sizeof index);
      frame.expect(index < kEagerCount, "has an unknown eager buffer");
      const size_t nbytes = static_cast<size_t>(signature.nbytes);
      std::memcpy(parts_.control.eager(rank, static_cast<size_t>(index)), frame.take(nbytes), nbytes);
    }
    parts_.negotiation.record(ticket, {{rank, signature, payload, kInlineNbytes}});
  }
  if (parts_.hosts.is_first()) parts_.sequencer.look(ticket);
  parts_.control.line(rank).watermark.store(watermark, std::memory_order_release);
  return true;
}

// Requests for the log: on the first host part of the order, elsewhere for what is said of the ranks later.
bool Receiver::apply_logged(int host, FrameParser& frame) {
  const OperationName operation = take_operation(frame);
  const std::vector<Negotiation::Recorded> requests = take_requests(frame, parts_.control.size(), Splits::kWithin);
  for (const Negotiation::Recorded& one : requests) {
    frame.expect(parts_.hosts.of[static_cast<size_t>(one.rank)] == host, "is about a rank of another host");
    frame.expect(!parts_.negotiation.requests().is_quick(one.signature, operation.is_named()),
                 "has an operation that is not in the log");
  }
  Ticket ticket = Ticket::unnamed(operation.counter);
  if (operation.is_named()) {
    if (!parts_.hosts.is_first() && parts_.decisions.has_decided_since(parts_.links[host].decisions, operation.name))
      return true;
    ticket = parts_.negotiation.record_named(operation.name, requests);
    if (ticket.tag == 0) return false;
  } else {
    const bool is_late = parts_.negotiation.requests().has_announced_since(ticket, requests.front().rank);
    frame.expect(!is_late || !parts_.hosts.is_first(), "has an operation that was called before");
    if (is_late) return true;  // decided meanwhile
    parts_.negotiation.record(ticket, requests);
  }
  if (!parts_.hosts.is_first()) return true;
  parts_.sequencer.add(ticket);
  parts_.sequencer.look(ticket);
  return true;
}

}  // namespace rr
