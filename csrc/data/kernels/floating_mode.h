// The floating-point mode in which kernels run, whichever thread runs them.
#pragma once

#include <cstdint>

namespace rr {
namespace {

// For as long as this lives: rounding to nearest, denormal numbers as they are. A thread may have another mode
// (torch.set_flush_denormal() sets that of its caller alone), and ranks of which one folds on such a thread and one
// does not would have other bits. Costs 2 ns where the mode is the usual one.
class FloatingMode {
 public:
  FloatingMode() : before_(read()) {
    if (needs_change()) write(before_ & ~kOthers);
  }
  ~FloatingMode() {
    if (needs_change()) write(before_);
  }
  FloatingMode(const FloatingMode&) = delete;
  FloatingMode& operator=(const FloatingMode&) = delete;

 private:
  bool needs_change() const { return (before_ & kOthers) != 0; }

  // The memory clobber keeps a kernel's loads and stores where they are.
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kOthers = 0x8000 | 0x6000 | 0x0040;  // MXCSR: FTZ, rounding, DAZ
  static Word read() {
    Word word;
    asm volatile("stmxcsr %0" : "=m"(word));
    return word;
  }
  static void write(Word word) { asm volatile("ldmxcsr %0" : : "m"(word) : "memory"); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kOthers = Word{1} << 24 | Word{3} << 22 | Word{1} << 19;  // FPCR: FZ, rounding, FZ16
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  using Word = uint32_t;
  static constexpr Word kOthers = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif

  const Word before_;
};

}  // namespace
}  // namespace rr
