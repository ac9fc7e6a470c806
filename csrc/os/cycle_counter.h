// The processor's counter of cycles, where it runs at one rate and alike on all cores. A look at it takes half as long
// as one at the clock, which reads the counter too, in order, and converts it (Xeon VM: 18 ns and 36 ns).
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace rr {

// Whether the kernel's own clock is that counter now: the kernel has checked it then.
bool has_cycle_counter();

// Counted in what unit the processor likes. The compiler may be built for one that has no such counter: nanoseconds.
// The processor may count before it has read what comes before in the program, not before a cycles_in_order().
inline int64_t cycles() {
#if defined(__x86_64__)
  return static_cast<int64_t>(__builtin_ia32_rdtsc());
#elif defined(__aarch64__)
  int64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count)::"memory");
  return count;
#else
  return now_ns();
#endif
}

// After all that comes before in the program has been read: who counts the end of a wait has seen its end.
inline int64_t cycles_in_order() {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
  return cycles();
}

}  // namespace rr
