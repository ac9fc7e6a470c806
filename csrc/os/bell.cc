#include "os/bell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace rr {

Woken sleep_on(Bell& bell, uint32_t seen, int64_t timeout_ns) {
  const timespec timeout = {static_cast<time_t>(timeout_ns / 1000000000), static_cast<long>(timeout_ns % 1000000000)};
  // Not FUTEX_PRIVATE: the bell is shared between processes.
  const long rc = ::syscall(SYS_futex, &bell.seq, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  if (rc == 0 || errno == EAGAIN) return Woken::kRung;
  return errno == EINTR ? Woken::kSignal : Woken::kTimeout;
}

void wake_all(Bell& bell) {
  bell.seq.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &bell.seq, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void relax(bool ranks_outnumber_cores) {
  if (ranks_outnumber_cores) {
    ::sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace rr
