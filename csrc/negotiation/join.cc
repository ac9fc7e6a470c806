#include "negotiation/join.h"

#include <algorithm>

namespace rr {

uint64_t Joins::record(int rank, uint64_t unnamed_counter, std::optional<uint32_t> stamp) {
  const uint64_t epoch = segment_.locked([&] {
    Header& header = control_.header();
    const bool is_own = !stamp;
    const uint64_t note = is_own ? notes_.begin() : 0;
    control_.line(rank).unnamed.store(unnamed_counter);
    control_.line(rank).joined.store(stamp.value_or(latest_stamp() + 1));
    header.joined_count.fetch_add(1);
    if (is_own) notes_.leave_joined(note);
    return header.join_epoch.load();
  });
  segment_.ring_all();  // operations that only waited for this rank are complete now
  return epoch;
}

uint32_t Joins::latest_stamp() const {
  uint32_t latest = control_.header().join_stamp_seen.load();
  for (int r = 0; r < control_.size(); ++r) latest = std::max(latest, control_.line(r).joined.load());
  return latest;
}

void Joins::see(uint32_t stamp) {
  if (stamp <= control_.header().join_stamp_seen.load()) return;
  segment_.locked([&] { control_.header().join_stamp_seen.store(stamp); });
}

void Joins::drained() {
  const uint32_t count = control_.header().drained_count.fetch_add(1) + 1;
  if (!hosts_.several() && count == static_cast<uint32_t>(control_.size())) finish();
}

// A rank whose host knew that another one had joined has a larger stamp than that one (Lamport 1978, "Time, clocks, and
// the ordering of events in a distributed system"). Of equal stamps neither knew of the other, and the higher rank
// counts as the later one: so all hosts name the same rank, in whatever order they have heard.
int Joins::last_joined() const {
  int last = 0;
  for (int r = 1; r < control_.size(); ++r) {
    if (control_.line(r).joined.load() >= control_.line(last).joined.load()) last = r;
  }
  return last;
}

void Joins::finish() {
  segment_.locked([&] {
    Header& header = control_.header();
    const uint64_t epoch = header.join_epoch.load();
    auto& result = header.join_results[epoch % 2];
    result.unnamed = segment_.largest_unnamed();
    result.last_joined = last_joined();
    names_.level_generations();
    for (int r = 0; r < control_.size(); ++r) {
      RankLine& line = control_.line(r);
      line.joined.store(0);
      if (!hosts_.is_here(r)) line.watermark.store(result.unnamed, std::memory_order_release);
    }
    header.joined_count.store(0);
    header.join_stamp_seen.store(0);
    header.drained_count.store(0);
    header.join_epoch.store(epoch + 1);
  });
  segment_.ring_all();
}

bool Joins::is_finished(uint64_t epoch) const {
  return control_.header().join_epoch.load(std::memory_order_acquire) != epoch;
}

JoinResult Joins::result(uint64_t epoch) const {
  const auto& result = control_.header().join_results[epoch % 2];
  return {static_cast<int>(result.last_joined), result.unnamed};
}

// Whoever announced the name's last operation but one has consumed it if it took part in the last one. A rank that
// joined in between may not have come to that. Ranks elsewhere read their own segment; their leader makes the same
// check before it writes there.
bool Joins::have_read(Ticket ticket) const {
  if (control_.header().joined_count.load(std::memory_order_acquire) == 0) return true;
  const size_t consumed_slot = Names::consumed_slot(Names::slot_at(ticket.request_slot));
  for (const int r : hosts_.here()) {
    const uint64_t announced = control_.head(ticket.request_slot, r).tag.load(std::memory_order_acquire);
    if (announced >= ticket.tag) continue;
    if (control_.head(consumed_slot, r).consumed.load(std::memory_order_acquire) < announced) return false;
  }
  return true;
}

}  // namespace rr
