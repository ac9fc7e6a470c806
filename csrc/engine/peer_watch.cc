#include "engine/peer_watch.h"

namespace rr {

bool PeerWatch::hold(int memory_file, int world_rank, std::function<bool(int)> is_expected) {
  const std::lock_guard lock(looking_);
  if (!presence_.hold(memory_file, world_rank)) return false;
  is_expected_ = std::move(is_expected);
  return true;
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
  // Gone first: a rank that leaves says so before it goes.
  for (int rank = 0; rank < static_cast<int>(deaths_.size()) && is_expected_ != nullptr; ++rank) {
    if (liveness_.is_watched(rank) && presence_.is_gone(rank) && is_expected_(rank))
      note(rank, kReplacedWithoutShutdown);
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
