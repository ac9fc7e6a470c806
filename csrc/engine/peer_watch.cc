#include "engine/peer_watch.h"

#include <algorithm>

#include "os/process_state.h"

namespace rr {
namespace {
// In a look, of the ranks in turn: to ask the kernel about one takes time with the number of all (256 ranks that each
// ask about all of them ten times a second would take half a core).
constexpr size_t kAskedAtOnce = 8;
}  // namespace

bool PeerWatch::hold(int memory_file, int world_rank, std::function<bool(int)> is_expected) {
  const std::lock_guard lock(looking_);
  if (!presence_.hold(memory_file, world_rank)) return false;
  is_expected_ = std::move(is_expected);
  return true;
}

void PeerWatch::drop() {
  const std::lock_guard lock(looking_);
  is_expected_ = nullptr;
  presence_ = Presence();
}

// A rank that arrives says so when it holds its Presence, and one that leaves before it drops it. A process that ends
// drops it too, before its pidfd tells, and has no memory then: another program has.
bool PeerWatch::is_replaced(int rank) const {
  return is_expected_(rank) && presence_.is_gone(rank) && is_expected_(rank) && has_memory(liveness_.pid_of(rank));
}

void PeerWatch::look() {
  const std::lock_guard lock(looking_);
  const auto note = [this](int rank, const std::string& why) {
    Death& death = deaths_[static_cast<size_t>(rank)];
    if (death.is_known.load(std::memory_order_relaxed)) return;
    death.why = why;
    death.is_known.store(true, std::memory_order_release);
  };
  for (const int rank : liveness_.newly_dead()) note(rank, kEndedWithoutShutdown);
  for (size_t asked = 0; asked < std::min(kAskedAtOnce, deaths_.size()) && is_expected_ != nullptr; ++asked) {
    const int rank = next_asked_;
    next_asked_ = (rank + 1) % static_cast<int>(deaths_.size());
    if (liveness_.is_watched(rank) && is_replaced(rank)) note(rank, kReplacedWithoutShutdown);
  }
  if (reader_ == nullptr) return;
  for (const LostRank& lost : reader_->newly_lost()) note(lost.world_rank, lost.why);
}

int PeerWatch::pid_of(int world_rank) {
  const std::lock_guard lock(looking_);
  return liveness_.pid_of(world_rank);
}

const char* PeerWatch::cause_of_death(int world_rank) const {
  const Death& death = deaths_[static_cast<size_t>(world_rank)];
  return death.is_known.load(std::memory_order_acquire) ? death.why.c_str() : nullptr;
}

}  // namespace rr
