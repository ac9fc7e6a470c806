// Mirror: join() across hosts.
//
// A rank's statements and its join travel in order, so a host that has seen it join knows what it has stated. What is
// complete for want of the ranks that have joined is therefore the same operation with the same participants on every
// host, however late each sees it. The end of an epoch needs more than that: a leader says once that its ranks have
// joined, know that all others have, and have nothing pending; a host goes on when all leaders have said so, for then
// it has heard everything that was stated in the epoch. What a rank elsewhere states after that waits in its line.
//
// Who joined last is what the first host saw.

#include <algorithm>

#include "engine/mirror.h"

namespace rr {

bool Mirror::have_drained() const {
  return gate_ == Gate::kNone && board_.header().drained_count.load(std::memory_order_acquire) == hosts_.here().size();
}

void Mirror::send_drained() {
  gate_ = Gate::kJoinEnds;
  const int32_t last_joined = board_.header().last_joined;  // final: everybody has joined
  if (hosts_.mine == 0) last_joined_ = last_joined;
  send(FrameType::kDrained, hosts_.here().front(), [&](FrameWriter& out) { out.put(last_joined); });
}

bool Mirror::finish_join() {
  if (!all_are_at(Gate::kJoinEnds)) return false;
  own_.finish_join(last_joined_);
  for (Sent& sent : sent_) sent.has_joined = false;
  pass_gate();
  return true;
}

bool Mirror::all_are_at(Gate gate) const {
  if (gate_ != gate) return false;
  return std::all_of(lines_.begin(), lines_.end(),
                     [&](const Line& line) { return line.link == nullptr || line.gate == gate; });
}

void Mirror::pass_gate() {
  gate_ = Gate::kNone;
  for (Line& line : lines_) {
    line.gate = Gate::kNone;
    for (const auto& [rank, attendance] : line.left_after) {
      board_.line(rank).attendance.store(attendance, std::memory_order_release);
    }
    line.left_after.clear();
  }
}

// What other hosts' ranks have stated becomes complete without another statement when somebody joins, and no rank of
// the first host, whose log it is, may have a part in it.
void Mirror::append_incomplete() {
  if (!log_full_ && board_.header().joined_count.load(std::memory_order_acquire) == 0) return;
  log_full_ = false;
  for (auto one = incomplete_.begin(); one != incomplete_.end();) {
    const Ticket ticket = {one->first, one->second.tag};
    const auto& mark = board_.append_mark(ticket.cell);
    const auto is_settled = [&] { return mark.load(std::memory_order_relaxed) >= ticket.tag; };
    if (!is_settled() && !ledgers_[static_cast<size_t>(one->second.rank)]->append(ticket)) log_full_ = true;
    one = is_settled() ? incomplete_.erase(one) : std::next(one);
  }
}

}  // namespace rr
