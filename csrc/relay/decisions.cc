#include "relay/decisions.h"

#include <algorithm>
#include <tuple>

namespace rr {

// They come in order, and none is left out.
uint64_t Decisions::apply(FrameParser& frame) {
  const uint64_t number = frame.take<uint64_t>();
  frame.expect(number != 0 && number <= count() + 1, "is out of order");
  if (number <= count()) {
    frame.skip();
    return number;
  }
  if (frame.head.type != FrameType::kDecided)
    negotiation_.joins().see(frame.take_up_to(static_cast<uint32_t>(control_.size())));
  if (frame.head.type == FrameType::kEntry && !apply_entry(frame, number)) return 0;
  if (frame.head.type == FrameType::kRefused && !apply_refusal(frame, number)) return 0;
  links_.set_decisions(number);
  if (last_by_name_.size() > forget_at_) forget_old();
  return number;
}

// And one of this host's ranks that are among them.
std::pair<RankMask, int> Decisions::take_participants(FrameParser& frame) const {
  const RankMask participants = take_ranks(frame, control_.size());
  const auto& here = hosts_.here();
  const auto witness = std::find_if(here.begin(), here.end(), [&](int r) { return participants.test(r); });
  frame.expect(witness != here.end(), "has an operation that no rank here has called");
  return {participants, *witness};
}

// The operation means what a rank of this host that takes part in it has announced last under its name: the rank
// announces no more before it has run it.
Ticket Decisions::ticket_of(const OperationName& operation, int witness, const FrameParser& frame) {
  const Ticket ticket =
      operation.is_named() ? negotiation_.latest_named(operation.name, witness) : Ticket::unnamed(operation.counter);
  frame.expect(ticket.tag != 0 && negotiation_.requests().has_announced(ticket, witness),
               "has an operation that no rank here has called");
  return ticket;
}

// Writes what is not known yet.
bool Decisions::record(Ticket ticket, std::vector<Negotiation::Recorded> requests) {
  const auto is_known = [&](const Negotiation::Recorded& one) {
    return hosts_.is_here(one.rank) || negotiation_.requests().has_announced(ticket, one.rank);
  };
  requests.erase(std::remove_if(requests.begin(), requests.end(), is_known), requests.end());
  return requests.empty() || negotiation_.record(ticket, requests);
}

void Decisions::finish(const OperationName& operation, Ticket ticket, uint64_t number) {
  if (operation.is_named()) last_by_name_[operation.name] = number;
  own_requests_.remove(ticket);
}

bool Decisions::has_decided_since(uint64_t decisions, const std::string& name) const {
  const auto last = last_by_name_.find(name);
  return last != last_by_name_.end() && last->second > decisions;
}

// What all leaders had taken up when they sent what has been read: nothing about that is on its way.
void Decisions::forget_old() {
  uint64_t least = count();
  for (int host = 0; host < links_.count(); ++host) {
    if (!links_.is_here(host)) least = std::min(least, links_[host].decisions);
  }
  for (auto one = last_by_name_.begin(); one != last_by_name_.end();) {
    one = one->second <= least ? last_by_name_.erase(one) : std::next(one);
  }
  forget_at_ = 2 * std::max(last_by_name_.size(), control_.capacity());
}

// What every rank runs by: that nobody waits for a rank, or by an algorithm, that cannot come.
void Decisions::check_first(const FrameParser& frame, const OrderedEntry& entry, const Signature& own) const {
  bool is_everybody = true;
  for (int r = 0; r < control_.size(); ++r) is_everybody &= entry.participants.test(r);
  frame.expect(is_everybody || can_do_without_joined(own.kind), "leaves out a rank that the operation needs");
  const Algo algorithm = static_cast<Algo>(entry.algorithm);
  const Reduction reduction = reduction_of(own, control_.size());
  const bool is_reduction = own.kind == Kind::kAllreduce;
  const bool is_possible =
      own.place == Place::kDevice
          ? algorithm == Algo::kIpc || algorithm == Algo::kNccl || algorithm == Algo::kMpi || algorithm == Algo::kStaged
          : algorithm == select_across_hosts(algorithm, is_reduction ? &reduction : nullptr, own.codec);
  frame.expect(is_possible, "has an algorithm that the operation cannot take");
}

bool Decisions::apply_entry(FrameParser& frame, uint64_t number) {
  OrderedEntry entry;
  entry.algorithm = frame.take_up_to(static_cast<uint32_t>(Algo::kStaged));
  int witness = 0;
  std::tie(entry.participants, witness) = take_participants(frame);
  entry.members.resize(frame.take_up_to(static_cast<uint32_t>(kEntryMembers)));
  frame.expect(!entry.members.empty(), "has no operation");
  std::vector<OperationName> names;
  for (Ticket& member : entry.members) {
    member = ticket_of(names.emplace_back(take_operation(frame)), witness, frame);
    Columns columns;
    const Signature& own = control_.signature(member.request_slot, witness);
    if (names.size() == 1) check_first(frame, entry, own);
    frame.expect(names.size() == 1 || can_share_entry(control_.signature(entry.members[0].request_slot, witness), own),
                 "has operations that cannot share an entry");
    if (!record(member, take_agreed(frame, own, entry.participants, hosts_.here(), control_.size(), columns)))
      return false;
  }
  for (size_t i = 0; i < names.size(); ++i) finish(names[i], entry.members[i], number);
  ordered_.push_back(std::move(entry));
  return true;
}

bool Decisions::apply_refusal(FrameParser& frame, uint64_t number) {
  const OperationName operation = take_operation(frame);
  const Ticket ticket = ticket_of(operation, take_participants(frame).second, frame);
  std::vector<Negotiation::Recorded> requests = take_requests(frame, control_.size(), Splits::kLeftOut);
  if (!record(ticket, std::move(requests))) return false;
  finish(operation, ticket, number);
  negotiation_.log().refuse(ticket);
  return true;
}

bool Decisions::repeat() {
  bool moved = false;
  while (!ordered_.empty()) {
    const OrderedEntry& entry = ordered_.front();
    if (!negotiation_.log().repeat(entry.members, entry.algorithm, entry.participants)) return moved;
    ordered_.pop_front();
    moved = true;
  }
  return moved;
}

}  // namespace rr
