// 16-bit floats: fp32 in registers. Scaling, folding and rounding to nearest even happen there, once.
#pragma once

#include "data/kernels/kernels_vectors.h"

namespace rr {
namespace {

// A vector of 16-bit elements in memory, in order, and the lower halves of the words of a vector.
typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
[[gnu::always_inline]] inline Words spread(const char* from) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof halves);
  return __builtin_convertvector(halves, Words);
}
[[gnu::always_inline]] inline void pack(char* to, Words words) {
  const Halves halves = __builtin_convertvector(words, Halves);
  __builtin_memcpy(to, &halves, sizeof halves);
}

// load() and store() may deal the elements to the parts as they like; widen() and narrow() take one vector of floats,
// in order, from and to kBytes / 2.
struct HalfFormat {
  using Element = float;
  using Part = Floats;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kBytes = kVectorBytes;
  static constexpr size_t kParts = 2;
  static constexpr size_t kResultScale = 1;
};

// The same with results that stay float32.
template <class Half>
struct ToFloat {
  using Element = float;
  using Part = Floats;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kBytes = kVectorBytes / 2;
  static constexpr size_t kParts = 1;
  static constexpr size_t kResultScale = 2;

  [[gnu::always_inline]] static inline void load(Floats* parts, const char* from) { *parts = Half::widen(from); }
  [[gnu::always_inline]] static inline void store(char* to, const Floats* parts) { Native<float>::store(to, parts); }
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
  [[gnu::always_inline]] static inline Floats widen(const char* from) { return (Floats)(spread(from) << 16); }
  // Any float, so a NaN may have nothing set in its upper half: it is made quiet.
  [[gnu::always_inline]] static inline void narrow(char* to, Floats value) {
    const Words quiet = (Words)(value != value) & 0x00400000;
    pack(to, (rounded(value) | quiet) >> 16);
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
