#include "os/liveness.h"

#include <poll.h>
#include <sched.h>

#include "os/process_state.h"

namespace rr {

Liveness::Liveness(const std::vector<int>& pidfds) {
  for (const int fd : pidfds) pidfds_.push_back(fd < 0 ? Fd() : Fd::duplicate(fd));
}

std::vector<int> Liveness::newly_dead() {
  // poll() refuses more descriptors at a time than the process may open, and a job has more ranks than that.
  constexpr size_t kAtOnce = 32;
  std::vector<int> dead;
  std::vector<pollfd> watched;
  std::vector<int> ranks;
  for (size_t rank = 0; rank < pidfds_.size(); ++rank) {
    if (pidfds_[rank]) {
      watched.push_back({pidfds_[rank].get(), POLLIN, 0});
      ranks.push_back(static_cast<int>(rank));
    }
    if (watched.size() < kAtOnce && rank + 1 < pidfds_.size()) continue;
    if (::poll(watched.data(), watched.size(), 0) > 0) {
      for (size_t i = 0; i < watched.size(); ++i) {
        if ((watched[i].revents & POLLIN) == 0) continue;
        dead.push_back(ranks[i]);
        pidfds_[static_cast<size_t>(ranks[i])].reset();
      }
    }
    watched.clear();
    ranks.clear();
  }
  return dead;
}

int Liveness::pid_of(int rank) const {
  const Fd& fd = pidfds_[static_cast<size_t>(rank)];
  return fd ? rr::pid_of(fd.get()) : 0;
}

void Liveness::close() {
  for (Fd& fd : pidfds_) fd.reset();
}

int allowed_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

}  // namespace rr
