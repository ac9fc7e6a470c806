// Codecs: how float32 elements travel between hosts. The kernels of reduction.h encode and decode; what a codec gives
// has the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rr {

// X(enumerator, name, bits an element)
#define RR_CODECS(X)   \
  X(kNone, "none", 32) \
  X(kFp16, "fp16", 16) \
  X(kBf16, "bf16", 16) \
  X(kInt8, "int8", 8)

// kNone  the elements themselves
// kFp16  IEEE half, kBf16 the upper half of float32: rounded to nearest even; what is too large becomes an infinity
// kInt8  for each block of 256 elements (the last one may be short) one float32 scale s, then a signed byte q for each
//        element, which stands for q s. s is max|x| / 127 cut to 17 significant bits, so that every q s is exact, hence
//        encoding what was decoded gives the same bytes. q is x / s rounded to nearest even, so |x - q s| <= 0.501 s.
//        A block with an infinity or a NaN becomes NaN as a whole: no finite result may hide one. A block whose scale
//        would be less than 2^-126 (all |x| < 127 * 2^-126) becomes zeros, denormals included.
//
// kScaledFp16 is not a user's to choose: it is for a host's sums of float16, which may be too large or too small for
// float16 themselves. For each block of 256 elements (the last one may be short) one float32 scale s, a power of two,
// then x / s as IEEE half, rounded to nearest even. s is the least one, from 2^-126 on, that brings the largest finite
// |x| to 65504 or below, which half can hold. So an element has 11 significant bits, or, where it is less than 2^-28 of
// the largest, an error of at most 2^-39 of that. An infinity or a NaN stays one, and changes no other element; what
// rounds to 2^128 becomes an infinity.
enum class Codec : uint8_t {
#define RR_ENUMERATOR(id, name, nbits) id,
  RR_CODECS(RR_ENUMERATOR)
#undef RR_ENUMERATOR
      kScaledFp16
};

inline constexpr int kCodecCount = 0  // that users may choose
#define RR_COUNT(id, name, nbits) +1
    RR_CODECS(RR_COUNT)
#undef RR_COUNT
    ;

// Elements of kInt8 or kScaledFp16 that share a scale. What starts at a multiple of it, at byte codec_nbytes() of what
// precedes, is encoded and decoded by itself.
inline constexpr size_t kCodecBlock = 256;

// Bytes of count encoded elements.
constexpr size_t codec_nbytes(Codec codec, size_t count) {
  const size_t scales = (count + kCodecBlock - 1) / kCodecBlock * sizeof(float);
  switch (codec) {
#define RR_CASE(id, name, nbits) \
  case Codec::id:                \
    return count * (nbits / 8) + (Codec::id == Codec::kInt8 ? scales : 0);
    RR_CODECS(RR_CASE)
#undef RR_CASE
    case Codec::kScaledFp16:
      return count * 2 + scales;
  }
  return 0;
}

const char* name(Codec codec);
Codec codec_from_name(std::string_view name);  // "" = kNone; throws InvalidArgumentError
Codec codec_from_code(int code);               // throws InvalidArgumentError

}  // namespace rr
