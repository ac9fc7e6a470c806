// IEEE half without F16C: integers and one float addition. The same bits as F16C, NaN included. Denormal halves are
// never denormal floats here, so flush-to-zero modes do not matter.
#pragma once

#include "data/kernels/kernels_half.h"

namespace rr {
namespace {

// The lower 16 bits of every word; the upper ones are zero.
[[gnu::always_inline]] inline Floats floats_from_fp16(Words bits) {
  const Words sign = (bits & 0x8000) << 16;
  const Words rest = (bits & 0x7fff) << 13;  // exponent and mantissa, where fp32 has them
  const Signed magnitude = (Signed)rest;
  const Words rebias = Words{} + (112u << 23);  // 127 - 15
  const Words normal = rest + rebias;
  const Words denormal = (Words)((Floats)(normal + (1u << 23)) - 0x1p-14f);
  const Words quiet = magnitude > 0x0f800000 ? Words{} + 0x00400000 : Words{};
  const Words special = (normal + rebias) | quiet;
  const Words finite = magnitude < 0x00800000 ? denormal : normal;
  return (Floats)((magnitude < 0x0f800000 ? finite : special) | sign);
}

[[gnu::always_inline]] inline Words fp16_from_floats(Floats value) {
  const Words bits = (Words)value;
  const Words sign = (bits >> 16) & 0x8000;
  const Words rest = bits & 0x7fffffff;
  const Signed magnitude = (Signed)rest;
  const Words normal = (rest - (112u << 23) + 0xfff + ((rest >> 13) & 1)) >> 13;
  // Next to 0.5 the spacing of fp32 is 2^-24, that of denormal halves: the addition rounds.
  const Words denormal = (Words)((Floats)rest + 0.5f) - 0x3f000000;
  const Words infinity = Words{} + 0x7c00;
  const Words nan = 0x7e00 | ((rest >> 13) & 0x3ff);
  const Words finite = magnitude < 0x38800000 ? denormal : normal;  // 2^-14
  const Words special = magnitude > 0x7f800000 ? nan : infinity;
  return (magnitude < 0x477ff000 ? finite : special) | sign;  // 65520
}

struct Float16 : HalfFormat {
  [[gnu::always_inline]] static inline void load(Floats* parts, const char* from) {
    Words words;
    __builtin_memcpy(&words, from, kBytes);
    parts[0] = floats_from_fp16(words & 0xffff);
    parts[1] = floats_from_fp16(words >> 16);
  }
  [[gnu::always_inline]] static inline void store(char* to, const Floats* parts) {
    const Words words = fp16_from_floats(parts[0]) | (fp16_from_floats(parts[1]) << 16);
    __builtin_memcpy(to, &words, kBytes);
  }
  [[gnu::always_inline]] static inline Floats widen(const char* from) { return floats_from_fp16(spread(from)); }
  [[gnu::always_inline]] static inline void narrow(char* to, Floats value) { pack(to, fp16_from_floats(value)); }
};

}  // namespace
}  // namespace rr
