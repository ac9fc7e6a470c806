#include "negotiation/segment/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace rr {

void SharedLock::sleep() {
  const timespec timeout = {0, 50000000};
  ::syscall(SYS_futex, &state_, FUTEX_WAIT, 2, &timeout, nullptr, 0);
}

void SharedLock::wake() { ::syscall(SYS_futex, &state_, FUTEX_WAKE, 1, nullptr, nullptr, 0); }

}  // namespace rr
