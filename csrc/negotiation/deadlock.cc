// Negotiation: what happens when all ranks wait for operations that can never be complete. Their requests are
// withdrawn.
//
// On one host that is found and done in one step under the group's lock. On several the first host finds it; then each
// host holds its ranks where they are (freeze) until all have agreed (relay/relay_deadlock.cc).

#include <algorithm>

#include "base/text.h"
#include "negotiation/negotiation.h"

namespace rr {
namespace {
constexpr uint64_t kHasJoined = UINT64_MAX;  // in the place of a block's epoch
}

uint64_t Negotiation::largest_unnamed() const {
  uint64_t largest = 0;
  for (int r = 0; r < control_.size(); ++r) largest = std::max(largest, control_.line(r).unnamed.load());
  return largest;
}

void Negotiation::block(Ticket ticket, uint64_t unnamed_counter) {
  locked([&] {
    RankLine& line = control_.line(rank_);
    line.unnamed.store(unnamed_counter);
    line.blocked_tag.store(ticket.tag);
    line.blocked_on.store(ticket.request_slot + 1);
    line.blocked_epoch.fetch_add(1);
  });
}

bool Negotiation::lift_block() {
  return locked([&] {
    if (withdrawn()) return true;
    if (is_frozen()) return false;
    RankLine& line = control_.line(rank_);
    line.blocked_on.store(0);
    line.blocked_epoch.fetch_add(1);
    return true;
  });
}

std::optional<bool> Negotiation::unblock(bool at_once) {
  return locked([&]() -> std::optional<bool> {
    if (is_frozen() && !at_once) return std::nullopt;
    RankLine& line = control_.line(rank_);
    const bool was_withdrawn = withdrawn();
    line.blocked_on.store(0);
    line.blocked_epoch.fetch_add(1);
    return was_withdrawn;
  });
}

bool Negotiation::withdrawn() const {
  const RankLine& line = control_.line(rank_);
  return line.blocked_on.load() != 0 && line.blocked_tag.load() == UINT64_MAX;
}

Ticket Negotiation::blocked_on(int rank) const {
  const RankLine& line = control_.line(rank);
  const uint64_t on = line.blocked_on.load();
  const uint64_t tag = line.blocked_tag.load();
  return on == 0 || tag == UINT64_MAX ? Ticket{} : Ticket{on - 1, tag};
}

// Lock held. Empty unless every rank is blocked (or has joined) and none of their operations is complete.
std::string Negotiation::describe_stuck() const {
  std::string text;
  for (int r = 0; r < control_.size(); ++r) {
    if (control_.line(r).joined.load() != 0) continue;
    const Ticket ticket = blocked_on(r);
    if (ticket.tag == 0 || complete(ticket)) return "";
    const std::vector<int> absent = missing(ticket);
    text += (text.empty() ? "" : "; ") + std::string("rank ") + std::to_string(world_rank(r)) + " waits in " +
            name(control_.signature(ticket.request_slot, r).kind) + " " + name_of(ticket) + " for rank";
    for (size_t i = 0; i < absent.size(); ++i) text += (i != 0 ? ", " : " ") + std::to_string(world_rank(absent[i]));
  }
  if (text.empty()) return "";
  return "every rank is blocked and no operation can complete: " + text +
         ". Call the same operations with the same names on all ranks.";
}

// Lock held.
void Negotiation::withdraw_blocked(const std::string& text, uint64_t unnamed) {
  Header& header = control_.header();
  write_text(header.withdraw_text, text);
  header.withdraw_unnamed = unnamed;
  for (int r = 0; r < control_.size(); ++r) {
    RankLine& line = control_.line(r);
    if (line.joined.load() != 0) continue;
    const Ticket ticket = blocked_on(r);
    // Of a rank elsewhere this host may know an earlier operation only, which is complete, or none.
    if (hosts_.is_here(r) || (ticket.tag != 0 && !complete(ticket))) control_.head(ticket.request_slot, r).tag.store(0);
    if (hosts_.is_here(r)) {
      line.blocked_tag.store(UINT64_MAX);
      continue;
    }
    line.blocked_on.store(0);
    // Its requests of unnamed operations that not all will announce. A rank here withdraws its own
    // (PendingOperations::withdraw).
    for (size_t request_slot = 0; request_slot < kUnnamedSlots; ++request_slot) {
      auto& tag = control_.head(request_slot, r).tag;
      const uint64_t announced = tag.load();
      if (announced > line.watermark.load() && !complete({request_slot, announced})) tag.store(0);
    }
  }
}

void Negotiation::detect_deadlock() {
  if (hosts_.several()) return;
  const bool verdict = locked([&] {
    const std::string text = describe_stuck();
    if (!text.empty()) withdraw_blocked(text, largest_unnamed());
    return !text.empty();
  });
  if (verdict) ring_all();
}

std::vector<std::string> Negotiation::announced_alone(int rank, const std::string& prefix) {
  return locked([&] {
    std::vector<std::string> found;
    for (size_t slot = 0; slot < control_.header().names_used; ++slot) {
      const uint64_t theirs = names_.latest(slot, rank);
      if (theirs <= names_.latest(slot, rank_) || theirs <= control_.name_slot(slot).base) continue;
      std::string text = names_.text(slot);
      if (text.rfind(prefix, 0) == 0) found.push_back(std::move(text));
    }
    return found;
  });
}

std::optional<Negotiation::Stuck> Negotiation::freeze_if_stuck() {
  return locked([&]() -> std::optional<Stuck> {
    Stuck stuck = {describe_stuck(), largest_unnamed(), {}};
    if (stuck.text.empty() || is_frozen()) return std::nullopt;
    for (int r = 0; r < control_.size(); ++r) {
      const RankLine& line = control_.line(r);
      stuck.epochs.push_back(line.joined.load() != 0 ? kHasJoined : line.blocked_epoch.load());
    }
    control_.header().frozen.store(1);
    return stuck;
  });
}

bool Negotiation::freeze(const std::vector<uint64_t>& epochs) {
  return locked([&] {
    for (const int r : hosts_.here()) {
      const RankLine& line = control_.line(r);
      const uint64_t epoch = epochs[static_cast<size_t>(r)];
      if (line.joined.load() != 0 || epoch == kHasJoined) {
        if (line.joined.load() == 0 || epoch != kHasJoined) return false;
      } else if (blocked_on(r).tag == 0 || line.blocked_epoch.load() != epoch) {
        return false;
      }
    }
    control_.header().frozen.store(1);
    return true;
  });
}

void Negotiation::thaw() {
  locked([&] { control_.header().frozen.store(0); });
  ring_all();
}

void Negotiation::withdraw(const std::string& text, uint64_t unnamed) {
  locked([&] {
    withdraw_blocked(text, unnamed);
    control_.header().frozen.store(0);
  });
  ring_all();
}

}  // namespace rr
