// Whether a rank's program is still the one that has joined. execve() keeps the process, so a pidfd does not tell; it
// drops descriptors, and with them a lock on a file that all ranks of the host have.
#pragma once

#include "os/owned_fd.h"

namespace rr {

class Presence {
 public:
  // Locks the rank's byte of a memory file until the process ends or is another program. False: it cannot
  // (no /proc, no such locks).
  bool hold(int memory_file, int rank);
  // Whether nobody holds the rank's byte. False too where that cannot be known.
  bool is_gone(int rank) const;

 private:
  OwnedFd file_;  // opened for this alone: the lock is that of the open file, however many descriptors it has
};

}  // namespace rr
