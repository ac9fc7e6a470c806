// HostRelay: what the other leaders say, written into this host's segment.

#include <algorithm>

#include "base/text.h"
#include "negotiation/failure.h"
#include "relay/host_relay.h"

namespace rr {

bool HostRelay::receive() {
  bool moved = false;
  for (int host = 0; host < hosts_.count(); ++host) {
    LeaderConnection& connection = connections_[static_cast<size_t>(host)];
    if (connection.link == nullptr) continue;
    while (connection.in.nbytes_left() < kAhead &&
           connection.in.fill([&](std::byte* bytes, size_t nbytes) { return connection.link->pull(bytes, nbytes); }))
      moved = true;
    moved |= connection.in.parse([&](FrameParser& frame) {
      if (!apply(host, frame)) return false;
      frame.end();
      return true;
    });
  }
  return moved;
}

// A leader sends frames about the ranks of its host. Frames about the host as a whole name the leader itself. Only the
// first host's leader sends entries of the log, and asks for and decides a verdict.
void HostRelay::check_sender(int host, const FrameParser& frame) const {
  const int rank = frame.head.rank;
  frame.expect(rank < control_.size() && hosts_.of[static_cast<size_t>(rank)] == host,
               "is about a rank of another host");
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
bool HostRelay::apply(int host, FrameParser& frame) {
  check_sender(host, frame);
  LeaderConnection& connection = connections_[static_cast<size_t>(host)];
  const int rank = frame.head.rank;
  Negotiation& negotiation = *negotiations_[static_cast<size_t>(rank)];
  append_incomplete();  // before a request slot that is read there is written again
  switch (frame.head.type) {
    case FrameType::kUnnamed:
      return connection.phase == Phase::kNone && apply_request(frame, false);
    case FrameType::kNamed:
      return connection.phase == Phase::kNone && apply_request(frame, true);
    case FrameType::kJoined:
      if (connection.phase != Phase::kNone) return false;
      frame.expect(control_.line(rank).joined.load() == 0, "says again that a rank has joined");
      negotiation.join(frame.take<uint64_t>());
      return true;
    case FrameType::kDrained: {
      const int32_t last_joined = frame.take_up_to<int32_t>(control_.size() - 1);
      frame.expect(last_joined >= -1, "has a negative rank");
      if (hosts_.of[static_cast<size_t>(rank)] == 0) last_joined_ = last_joined;
      connection.phase = Phase::kJoinEnds;
      return true;
    }
    case FrameType::kConsumed: {
      const Ticket ticket = negotiation.latest_named(frame.take_text(kNameNbytes), rank);
      if (ticket.tag != 0) negotiation.publish_consumed_named(ticket);
      return true;
    }
    case FrameType::kWatermark:
      control_.line(rank).watermark.store(frame.take<uint64_t>(), std::memory_order_release);
      return true;
    case FrameType::kLeft:
      apply_left(connection, frame);
      return true;
    case FrameType::kFailed: {
      const FatalKind kind = frame.take_up_to(FatalKind::kMismatch);
      const std::string text = frame.take_text(sizeof control_.header().failure_text);
      failure_sent_ = true;  // whoever sent it has told everybody
      record_failure(control_, kind, text);
      return true;
    }
    case FrameType::kEntry:
      apply_entry(frame);
      return true;
    case FrameType::kBlocked:
      if (connection.phase != Phase::kNone) return false;
      apply_block(frame);
      return true;
    case FrameType::kFreeze:
      apply_freeze(frame);
      return true;
    case FrameType::kVote:
      apply_vote(frame);
      return true;
    case FrameType::kVerdict:
      apply_verdict(connection, frame);
      return true;
    case FrameType::kSettled:
      connection.phase = Phase::kVerdict;
      return true;
  }
  return true;  // check_sender() knows all types
}

void HostRelay::apply_left(LeaderConnection& connection, FrameParser& frame) {
  const int rank = frame.head.rank;
  const uint64_t cursor = frame.take<uint64_t>();
  frame.expect(cursor == 0 || cursor == kFinished, "has a value that its field cannot have");
  const Attendance attendance = frame.take_up_to(Attendance::kClosed);
  // What it has pushed may still be on its way, over another link than this.
  control_.line(rank).cursor.store(cursor, std::memory_order_release);
  for (int r = 0; r < control_.size(); ++r) control_.messages_sent(rank, r).store(frame.take<uint64_t>());
  const std::string cause = frame.take_text(sizeof control_.cause(rank).text);
  // A leader is told to have left twice; from the first time on others read it.
  if (!has_left(control_.line(rank))) write_text(control_.cause(rank).text, cause);
  if (connection.phase != Phase::kNone) {
    connection.left_after.push_back({rank, attendance});  // nobody here misses it before
    return;
  }
  control_.line(rank).attendance.store(attendance, std::memory_order_release);
}

void HostRelay::apply_entry(FrameParser& frame) {
  OrderedEntry entry;
  entry.algorithm = frame.take_up_to(static_cast<uint32_t>(Algo::kStaged));
  entry.participants = frame.take<RankMask>();
  for (int r = control_.size(); r < kMaxRanks; ++r) frame.expect(!entry.participants.test(r), "has unknown ranks");
  entry.members.resize(frame.take_up_to(static_cast<uint32_t>(kEntryMembers)));
  frame.expect(!entry.members.empty(), "has no operation");
  const auto& here = hosts_.here();
  const auto witness = std::find_if(here.begin(), here.end(), [&](int r) { return entry.participants.test(r); });
  for (Ticket& member : entry.members) {
    member = frame.take<Ticket>();
    const std::string name = frame.take_text(kNameNbytes);
    if (name.empty()) {
      frame.expect(member.tag != 0 && member.request_slot == (member.tag - 1) % kUnnamedSlots,
                   "has no such request slot");
    } else if (witness != here.end()) {
      // Slots and generations are each host's own. The entry means what the ranks of this host have announced last
      // under the name: they announce no more before they have run it.
      member = own_.latest_named(name, *witness);
      frame.expect(member.tag != 0, "has an operation that no rank here has called");
    }
  }
  // Nothing to run, and the requests may be overwritten already.
  if (witness == here.end()) return;
  ordered_.push_back(std::move(entry));
}

bool HostRelay::apply_request(FrameParser& frame, bool is_named) {
  const int rank = frame.head.rank;
  Negotiation& negotiation = *negotiations_[static_cast<size_t>(rank)];
  const uint64_t watermark = frame.take<uint64_t>();
  const Signature signature = frame.take<Signature>();
  check(signature, frame);
  const std::byte* const payload = frame.take(control_.inline_nbytes());
  Ticket ticket;
  const bool is_logged = !own_.is_quick(signature, is_named);
  if (is_named) {
    const std::string name = frame.take_text(kNameNbytes);
    frame.expect(!name.empty(), "has no name");
    bool log_full = false;
    ticket = negotiation.announce_named(name, signature, payload, control_.inline_nbytes(), is_logged, log_full);
    log_full_ |= log_full;
    if (ticket.tag == 0) return false;
  } else {
    const uint64_t counter = frame.take<uint64_t>();
    const uint64_t before = control_.head(counter % kUnnamedSlots, rank).tag.load(std::memory_order_relaxed);
    frame.expect(counter != UINT64_MAX && before <= counter, "has an operation that was called before");
    if (is_eager(signature, rank, is_named)) {
      uint64_t index;
      std::memcpy(&index, payload, sizeof index);
      const size_t nbytes = static_cast<size_t>(signature.nbytes);
      std::memcpy(control_.eager(rank, static_cast<size_t>(index % kEagerCount)), frame.take(nbytes), nbytes);
    }
    ticket = negotiation.announce_unnamed(counter, signature, payload, control_.inline_nbytes());
    if (is_logged && !negotiation.append(ticket)) log_full_ = true;
  }
  if (is_logged && hosts_.mine == 0) incomplete_[ticket.request_slot] = {rank, ticket.tag};
  control_.line(rank).watermark.store(watermark, std::memory_order_release);
  return true;
}

// What a signature may have without this host reading or writing what is not there.
void HostRelay::check(const Signature& signature, const FrameParser& frame) const {
  const bool is_known = signature.kind <= Kind::kBarrier && static_cast<int>(signature.dtype) < kDTypeCount &&
                        static_cast<int>(signature.op) < kOpCount && static_cast<int>(signature.codec) < kCodecCount &&
                        signature.place <= Place::kDevice;
  frame.expect(is_known, "has a value that its field cannot have");
  frame.expect(signature.root >= -1 && signature.root < control_.size(), "has an unknown root");
  frame.expect(signature.tensors >= 1, "has no tensor");
}

// In order, each once all requests about it are here and the log has room.
bool HostRelay::repeat_ordered() {
  bool moved = false;
  while (!ordered_.empty()) {
    const OrderedEntry& entry = ordered_.front();
    for (const Ticket ticket : entry.members) {
      if (!own_.complete(ticket)) return moved;
    }
    if (!own_.repeat(entry.members, entry.algorithm, entry.participants)) return moved;
    ordered_.pop_front();
    moved = true;
  }
  return moved;
}

}  // namespace rr
