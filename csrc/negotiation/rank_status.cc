#include "negotiation/rank_status.h"

#include "base/text.h"
#include "os/bell.h"

namespace rr {
namespace {
constexpr int kTurns = 100;
}

uint64_t RankStatuses::ask(int rank) const {
  if (const uint64_t open = question_to(rank); open != 0) return open;
  const uint64_t question = line(rank).asked.fetch_add(1, std::memory_order_acq_rel) + 1;
  tell(hosts_.is_here(rank) ? rank : hosts_.leader_here());
  return question;
}

uint64_t RankStatuses::question_to(int rank) const {
  const uint64_t asked = line(rank).asked.load(std::memory_order_acquire);
  return asked > line(rank).answered.load(std::memory_order_acquire) ? asked : 0;
}

bool RankStatuses::answer(int rank, uint64_t question, const std::string& text) const {
  if (!world_.header().lock.try_acquire()) return false;
  const auto write = [&] {
    const SharedLockGuard guard(world_.header().lock, std::adopt_lock);
    if (question <= line(rank).answered.load(std::memory_order_relaxed)) return;
    write_text(line(rank).text, text);
    line(rank).answered.store(question, std::memory_order_release);
  };
  write();
  tell(hosts_.leader_here());  // who may have been asked by another host
  return true;
}

std::optional<std::string> RankStatuses::answer_to(int rank, uint64_t question) const {
  if (question > line(rank).answered.load(std::memory_order_acquire)) return std::nullopt;
  // Held for less than a microsecond, unless its holder was stopped or has lost its core.
  for (int turn = 0; !world_.header().lock.try_acquire(); ++turn) {
    if (turn == kTurns) return std::nullopt;
    relax(true);
  }
  const SharedLockGuard guard(world_.header().lock, std::adopt_lock);
  return std::string(line(rank).text);
}

void RankStatuses::tell(int rank) const {
  world_.header().status_changes.fetch_add(1, std::memory_order_acq_rel);
  ring(world_.engine_bell(rank));
}

}  // namespace rr
