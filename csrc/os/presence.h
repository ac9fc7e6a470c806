// Whether a rank's program is still the one that has joined. execve() keeps the process, so a pidfd does not tell; it
// drops descriptors, and with them a lock on a file that all ranks of the host have.
#pragma once

#include "os/fd.h"

namespace rr {

class Presence {
 public:
  // Locks the rank's byte of a memory file until the process ends, is another program, or close(). False: it cannot
  // (no /proc, no such locks).
  bool hold(int memory_file, int rank);
  // Whether nobody holds the rank's byte. False too where that cannot be known.
  bool is_gone(int rank) const;
  void close() { file_.reset(); }  // in a forked child, which is not the rank

 private:
  Fd file_;  // opened for this alone: the lock is that of the open file, however many descriptors it has
};

}  // namespace rr
