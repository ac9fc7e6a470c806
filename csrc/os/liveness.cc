#include "os/liveness.h"

#include <poll.h>
#include <sched.h>

#include "os/process_state.h"

namespace rr {

Liveness::Liveness(const std::vector<int>& pidfds) {
  for (const int fd : pidfds) pidfds_.push_back(fd < 0 ? Fd() : Fd::duplicate(fd));
}

std::vector<int> Liveness::newly_dead() {
  std::vector<pollfd> watched;
  for (const Fd& fd : pidfds_) watched.push_back({fd.get(), POLLIN, 0});  // poll ignores negative descriptors
  std::vector<int> dead;
  if (::poll(watched.data(), watched.size(), 0) <= 0) return dead;
  for (size_t rank = 0; rank < watched.size(); ++rank) {
    if ((watched[rank].revents & POLLIN) == 0) continue;
    dead.push_back(static_cast<int>(rank));
    pidfds_[rank].reset();
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
