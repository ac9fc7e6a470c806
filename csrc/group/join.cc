// Ledger: joining, and what happens when all ranks wait for operations that can never be complete.
//
// On several hosts each has its own joined ranks and epoch. Who is seen to have joined has stated all it will, because
// its leader tells both in order; so the participants of an operation are the same everywhere. An epoch ends on a host
// when the leaders of all have said that their ranks have drained (engine/mirror_join.cc).

#include <cstring>

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

uint64_t Ledger::largest_unnamed() const {
  uint64_t largest = 0;
  for (int r = 0; r < board_.size(); ++r) largest = std::max(largest, board_.line(r).unnamed.load());
  return largest;
}

void Ledger::block(Ticket ticket, uint64_t unnamed_counter) {
  RankLine& line = board_.line(rank_);
  line.unnamed.store(unnamed_counter);
  line.blocked_tag.store(ticket.tag);
  line.blocked_on.store(ticket.cell + 1);
  line.blocked_epoch.fetch_add(1);
}

void Ledger::lift_block() {
  locked([&] {
    if (withdrawn()) return;
    RankLine& line = board_.line(rank_);
    line.blocked_on.store(0);
    line.blocked_epoch.fetch_add(1);
  });
}

bool Ledger::unblock() {
  return locked([&] {
    RankLine& line = board_.line(rank_);
    const bool was_withdrawn = withdrawn();
    line.blocked_on.store(0);
    line.blocked_epoch.fetch_add(1);
    return was_withdrawn;
  });
}

bool Ledger::withdrawn() const {
  const RankLine& line = board_.line(rank_);
  return line.blocked_on.load() != 0 && line.blocked_tag.load() == UINT64_MAX;
}

void Ledger::detect_deadlock() {
  const bool verdict = locked([&] {
    std::vector<uint64_t> epochs;
    std::string text;
    int blocked = 0;
    for (int r = 0; r < board_.size(); ++r) {
      const RankLine& line = board_.line(r);
      epochs.push_back(line.blocked_epoch.load());
      if (line.joined.load() != 0) continue;
      const Ticket ticket = {line.blocked_on.load() - 1, line.blocked_tag.load()};
      if (ticket.cell == UINT64_MAX || ticket.tag == UINT64_MAX || complete(ticket)) return false;
      const std::vector<int> absent = missing(ticket);
      text += (blocked++ != 0 ? "; " : "") + std::string("rank ") + std::to_string(world_rank(r)) + " waits in " +
              name(board_.signature(ticket.cell, r).kind) + " " + name_of(ticket) + " for rank";
      for (size_t i = 0; i < absent.size(); ++i) text += (i != 0 ? ", " : " ") + std::to_string(world_rank(absent[i]));
    }
    // Every rank stood still while we looked, so the picture is one moment's.
    for (int r = 0; r < board_.size(); ++r) {
      if (board_.line(r).blocked_epoch.load() != epochs[static_cast<size_t>(r)]) return false;
    }
    if (blocked == 0) return false;
    text = "every rank is blocked and no operation can complete: " + text +
           ". Call the same operations with the same names on all ranks.";
    const size_t length = std::min(text.size(), sizeof(Header::withdraw_text) - 1);
    std::memcpy(board_.header().withdraw_text, text.data(), length);
    board_.header().withdraw_text[length] = '\0';
    board_.header().withdraw_unnamed = largest_unnamed();
    for (int r = 0; r < board_.size(); ++r) {
      RankLine& line = board_.line(r);
      if (line.joined.load() != 0) continue;
      board_.head(line.blocked_on.load() - 1, r).tag.store(0);
      line.blocked_tag.store(UINT64_MAX);
    }
    return true;
  });
  if (verdict) ring_all();
}

}  // namespace rr
