// 16-bit floats: fp32 in registers. Scaling, folding and rounding to nearest even happen there, once.
#pragma once

#include "data/kernels_vectors.h"

namespace rr {
namespace {

struct HalfFormat {
  using Element = float;
  using Part = Floats;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kBytes = kVectorBytes;
  static constexpr size_t kParts = 2;
};

// bfloat16 is the upper half of fp32. One part takes the lower 16 bits of every word, the other the upper: no shuffles.
// Not vcvtneps2bf16, which flushes denormals.
struct BFloat16 : HalfFormat {
  [[gnu::always_inline]] static inline void load(Floats* parts, const char* from) {
    Words words;
    __builtin_memcpy(&words, from, kBytes);
    parts[0] = (Floats)(words << 16);
    parts[1] = (Floats)(words & 0xffff0000);
  }
  [[gnu::always_inline]] static inline void store(char* to, const Floats* parts) {
    const Words words = (rounded(parts[0]) >> 16) | (rounded(parts[1]) & 0xffff0000);
    __builtin_memcpy(to, &words, kBytes);
  }

 private:
  // The upper 16 bits are the result. A NaN is cut off, not rounded: it is a bfloat16 itself or has its quiet bit set,
  // so what is left is a NaN.
  [[gnu::always_inline]] static inline Words rounded(Floats value) {
    const Words bits = (Words)value;
    return bits + ((0x7fff + ((bits >> 16) & 1)) & (Words)(value == value));
  }
};

}  // namespace
}  // namespace rr
