// Ledger: joining.
//
// On several hosts each has its own joined ranks and epoch. Who is seen to have joined has stated all it will, because
// its leader tells both in order; so the participants of an operation are the same everywhere. An epoch ends on a host
// when the leaders of all have said that their ranks have drained (engine/mirror_join.cc).

#include "group/ledger.h"

namespace rr {

uint64_t Ledger::join(uint64_t unnamed_counter) {
  const uint64_t epoch = locked([&] {
    Header& header = board_.header();
    board_.line(rank_).unnamed.store(unnamed_counter);
    board_.line(rank_).joined.store(1);
    header.joined_count.fetch_add(1);
    if (hosts_.mine == 0) header.last_joined = rank_;  // the first host tells the others
    return header.join_epoch.load();
  });
  ring_all();  // operations that only waited for this rank are complete now
  return epoch;
}

void Ledger::drained() {
  const uint32_t count = board_.header().drained_count.fetch_add(1) + 1;
  if (!hosts_.several() && count == static_cast<uint32_t>(board_.size())) finish_join(board_.header().last_joined);
}

void Ledger::finish_join(int last_joined) {
  locked([&] {
    Header& header = board_.header();
    const uint64_t epoch = header.join_epoch.load();
    auto& result = header.join_results[epoch % 2];
    result.unnamed = largest_unnamed();
    result.last_joined = last_joined;
    names_.level_generations();
    for (int r = 0; r < board_.size(); ++r) {
      RankLine& line = board_.line(r);
      line.joined.store(0);
      if (!hosts_.is_here(r)) line.watermark.store(result.unnamed, std::memory_order_release);
    }
    header.joined_count.store(0);
    header.drained_count.store(0);
    header.join_epoch.store(epoch + 1);
  });
  ring_all();
}

bool Ledger::join_finished(uint64_t epoch) const {
  return board_.header().join_epoch.load(std::memory_order_acquire) != epoch;
}

JoinResult Ledger::join_result(uint64_t epoch) const {
  const auto& result = board_.header().join_results[epoch % 2];
  return {static_cast<int>(result.last_joined), result.unnamed};
}

// Whoever stated the name's last operation but one has consumed it if it took part in the last one. A rank that joined
// in between may not have come to that.
bool Ledger::has_been_read(Ticket ticket) const {
  if (board_.header().joined_count.load(std::memory_order_acquire) == 0) return true;
  const size_t notes = Names::consumed_cell((ticket.cell - kUnnamedCells) / 2);
  for (int r = 0; r < board_.size(); ++r) {
    const uint64_t stated = board_.head(ticket.cell, r).tag.load(std::memory_order_acquire);
    if (stated >= ticket.tag) continue;
    if (board_.head(notes, r).consumed.load(std::memory_order_acquire) < stated) return false;
  }
  return true;
}

}  // namespace rr
