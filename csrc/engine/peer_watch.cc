#include "engine/peer_watch.h"

namespace rr {

void PeerWatch::look() {
  const std::lock_guard lock(looking_);
  const auto note = [this](int rank, const std::string& why) {
    Death& death = deaths_[static_cast<size_t>(rank)];
    if (death.is_known.load(std::memory_order_relaxed)) return;
    death.why = why;
    death.is_known.store(true, std::memory_order_release);
  };
  for (const int rank : liveness_.newly_dead()) note(rank, kEndedWithoutShutdown);
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
