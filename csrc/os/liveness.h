// Which peer processes have ended, told by their pidfds: immediate, free of pid reuse, and blind to who closed what.
#pragma once

#include <vector>

#include "os/fd.h"

namespace rr {

// Of such a process, in a text about its rank.
inline constexpr const char* kEndedWithoutShutdown =
    "its process has ended without shutdown(); see that rank's output for the reason";

// Of one that is there, with another program in it.
inline constexpr const char* kReplacedWithoutShutdown =
    "its process runs another program since an exec() without shutdown() before it";

class Liveness {
 public:
  // pidfds[r] watches rank r; negative = not watched (this rank, or ranks that are threads of this process).
  explicit Liveness(const std::vector<int>& pidfds);
  // Ranks whose process has ended, each reported once. Never blocks.
  std::vector<int> newly_dead();
  bool is_watched(int rank) const { return static_cast<bool>(pidfds_[static_cast<size_t>(rank)]); }
  int pid_of(int rank) const;  // 0: it is not watched, has ended, or the kernel does not say
  void close();                // all descriptors; for a forked child

 private:
  std::vector<Fd> pidfds_;
};

int allowed_cores();  // size of this process's CPU affinity mask

}  // namespace rr
