#include "negotiation/deadlock.h"

#include <algorithm>

#include "base/text.h"

namespace rr {
namespace {
constexpr uint64_t kHasJoined = UINT64_MAX;  // in the place of a block's epoch
}

void Deadlock::block(Ticket ticket, uint64_t unnamed_counter) {
  segment_.locked([&] {
    RankLine& line = control_.line(segment_.rank);
    line.unnamed.store(unnamed_counter);
    line.blocked_tag.store(ticket.tag);
    line.blocked_on.store(ticket.request_slot + 1);
    line.blocked_epoch.fetch_add(1);
  });
}

bool Deadlock::lift_block() {
  return segment_.locked([&] {
    if (is_withdrawn()) return true;
    if (is_frozen()) return false;
    RankLine& line = control_.line(segment_.rank);
    line.blocked_on.store(0);
    line.blocked_epoch.fetch_add(1);
    return true;
  });
}

std::optional<bool> Deadlock::unblock(bool at_once) {
  return segment_.locked([&]() -> std::optional<bool> {
    if (is_frozen() && !at_once) return std::nullopt;
    RankLine& line = control_.line(segment_.rank);
    const bool was_withdrawn = is_withdrawn();
    line.blocked_on.store(0);
    line.blocked_epoch.fetch_add(1);
    return was_withdrawn;
  });
}

Deadlock::Verdict Deadlock::verdict() const {
  return segment_.locked([&] { return Verdict{control_.header().withdraw_text, control_.header().withdraw_unnamed}; });
}

bool Deadlock::is_withdrawn() const {
  const RankLine& line = control_.line(segment_.rank);
  return line.blocked_on.load() != 0 && line.blocked_tag.load() == UINT64_MAX;
}

Ticket Deadlock::blocked_on(int rank) const {
  const RankLine& line = control_.line(rank);
  const uint64_t on = line.blocked_on.load();
  const uint64_t tag = line.blocked_tag.load();
  return on == 0 || tag == UINT64_MAX ? Ticket{} : Ticket{on - 1, tag};
}

// Lock held. Empty unless every rank is blocked (or has joined) and none of their operations is complete.
std::string Deadlock::describe_stuck() const {
  // Usually some rank waits for nothing: then nobody looks at the requests, which takes the ranks' number squared.
  for (int r = 0; r < control_.size(); ++r) {
    if (control_.line(r).joined.load() == 0 && blocked_on(r).tag == 0) return "";
  }
  std::string text;
  for (int r = 0; r < control_.size(); ++r) {
    if (control_.line(r).joined.load() != 0) continue;
    const Ticket ticket = blocked_on(r);
    if (ticket.tag == 0 || requests_.complete(ticket)) return "";
    if (text.size() > sizeof control_.header().withdraw_text) continue;  // more would be cut off
    const std::vector<int> absent = requests_.missing(ticket);
    text += (text.empty() ? "" : "; ") + std::string("rank ") + std::to_string(segment_.world_rank(r)) + " waits in " +
            name(control_.signature(ticket.request_slot, r).kind) + " " + names_.name_of(ticket) + " for rank";
    for (size_t i = 0; i < absent.size(); ++i)
      text += (i != 0 ? ", " : " ") + std::to_string(segment_.world_rank(absent[i]));
  }
  if (text.empty()) return "";
  return "every rank is blocked and no operation can complete: " + text +
         ". Call the same operations with the same names on all ranks.";
}

// Lock held. Of all ranks at once: one that raises the verdict may join at once, and what misses it would be complete.
void Deadlock::withdraw_blocked(const std::string& text, uint64_t unnamed) {
  Header& header = control_.header();
  write_text(header.withdraw_text, text);
  header.withdraw_unnamed = unnamed;
  header.verdicts.fetch_add(1);
  for (int r = 0; r < control_.size(); ++r) {
    RankLine& line = control_.line(r);
    if (line.joined.load() != 0) {  // it waits for nothing, and the counters go on behind what it alone has announced
      withdraw_unnamed_of(r);
      continue;
    }
    const Ticket ticket = blocked_on(r);
    // Of a rank elsewhere this host may know an earlier operation only, which is complete, or none.
    if (hosts_.is_here(r) || (ticket.tag != 0 && !requests_.complete(ticket)))
      control_.head(ticket.request_slot, r).tag.store(0);
    withdraw_unnamed_of(r);
    if (hosts_.is_here(r)) {
      line.blocked_tag.store(UINT64_MAX);
    } else {
      line.blocked_on.store(0);
    }
  }
}

// A rank's requests of unnamed operations that not all will announce.
void Deadlock::withdraw_unnamed_of(int rank) {
  for (size_t request_slot = 0; request_slot < kUnnamedSlots; ++request_slot) {
    auto& tag = control_.head(request_slot, rank).tag;
    const uint64_t announced = tag.load();
    if (announced > control_.line(rank).watermark.load() && !requests_.complete({request_slot, announced}))
      tag.store(0);
  }
}

void Deadlock::detect() {
  if (hosts_.several()) return;
  const bool verdict = segment_.locked([&] {
    const std::string text = describe_stuck();
    if (!text.empty()) withdraw_blocked(text, segment_.largest_unnamed());
    return !text.empty();
  });
  if (verdict) segment_.ring_all();
}

std::optional<Deadlock::Stuck> Deadlock::freeze_if_stuck() {
  return segment_.locked([&]() -> std::optional<Stuck> {
    Stuck stuck = {describe_stuck(), segment_.largest_unnamed(), {}};
    if (stuck.text.empty() || is_frozen()) return std::nullopt;
    for (int r = 0; r < control_.size(); ++r) {
      const RankLine& line = control_.line(r);
      stuck.epochs.push_back(line.joined.load() != 0 ? kHasJoined : line.blocked_epoch.load());
    }
    control_.header().frozen.store(1);
    return stuck;
  });
}

bool Deadlock::freeze(const std::vector<uint64_t>& epochs) {
  return segment_.locked([&] {
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

void Deadlock::thaw() {
  segment_.locked([&] { control_.header().frozen.store(0); });
  segment_.ring_all();
}

void Deadlock::withdraw(const std::string& text, uint64_t unnamed) {
  segment_.locked([&] {
    withdraw_blocked(text, unnamed);
    control_.header().frozen.store(0);
  });
  segment_.ring_all();
}

}  // namespace rr
