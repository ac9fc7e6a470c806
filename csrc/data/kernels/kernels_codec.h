// The codecs of codec.h.
#pragma once

#include "data/kernels/floating_mode.h"
#include "data/kernels/kernels_half.h"
#include "data/reduction.h"

namespace rr {
namespace {

constexpr size_t kLanes = kVectorBytes / sizeof(float);

template <class V>
[[gnu::always_inline]] inline V vector_at(const char* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}
template <class V>
[[gnu::always_inline]] inline void put_vector(char* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof vector);
}

template <class F>
void encode_half(const char* src, char* dst, size_t count) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) F::narrow(dst + i * 2, vector_at<Floats>(src + i * 4));
  if (i == count) return;
  char floats[kVectorBytes] = {};
  char halves[kVectorBytes / 2];
  copy_some(floats, src + i * 4, (count - i) * 4);
  F::narrow(halves, vector_at<Floats>(floats));
  copy_some(dst + i * 2, halves, (count - i) * 2);
}

template <class F>
void decode_half(const char* src, char* dst, size_t count) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) put_vector(dst + i * 4, F::widen(src + i * 2));
  if (i == count) return;
  char halves[kVectorBytes / 2] = {};
  char floats[kVectorBytes];
  copy_some(halves, src + i * 2, (count - i) * 2);
  put_vector(floats, F::widen(halves));
  copy_some(dst + i * 4, floats, (count - i) * 4);
}

// The codes of a whole block are 64 words; byte k of word i is the code of element 64 k + i. So a vector of words is
// made of four vectors of elements without shuffles, whatever the size of a vector. A short block has them in order.
constexpr size_t kPart = kCodecBlock / 4;
constexpr size_t kPartNbytes = kPart * sizeof(float);

// Which byte of a whole block's codes is that of element i.
constexpr size_t code_at(size_t i) { return i % kPart * 4 + i / kPart; }

constexpr int32_t kInfinity = 0x7f800000;

// The bits of the largest magnitude: as integers, finite < infinity < NaN. kFinite: of the finite ones.
template <bool kFinite>
[[gnu::always_inline]] inline int32_t largest_of(const char* src) {
  Signed top[4] = {};
  for (size_t i = 0; i < kPartNbytes; i += kVectorBytes) {
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; ++k) {
      Signed magnitude = vector_at<Signed>(src + k * kPartNbytes + i) & 0x7fffffff;
      if (kFinite) magnitude &= magnitude < kInfinity;
      top[k] = magnitude > top[k] ? magnitude : top[k];
    }
  }
#pragma GCC unroll 4
  for (size_t k = 1; k < 4; ++k) top[0] = top[k] > top[0] ? top[k] : top[0];
  int32_t largest = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) largest = top[0][lane] > largest ? top[0][lane] : largest;
  return largest;
}

// 256 elements to 256 codes; returns the scale.
[[gnu::always_inline]] inline float encode_block(const char* src, char* codes) {
  const int32_t largest = largest_of<false>(src);
  if (largest >= kInfinity) {
    __builtin_memset(codes, 0, kCodecBlock);
    return __builtin_nanf("");
  }
  float scale;
  __builtin_memcpy(&scale, &largest, sizeof scale);
  scale /= 127.0f;
  int32_t bits;
  __builtin_memcpy(&bits, &scale, sizeof bits);
  bits &= ~0x7f;  // 24 - 7 = 17 significant bits; 127 has 7
  __builtin_memcpy(&scale, &bits, sizeof scale);
  if (scale < 0x1p-126f) scale = 0.0f;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (size_t i = 0; i < kPartNbytes; i += kVectorBytes) {
    Words word{};
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; ++k) {
      const Floats steps = vector_at<Floats>(src + k * kPartNbytes + i) * inverse;
      // Next to 1.5 * 2^23 the spacing of fp32 is 1: the addition rounds, and the lowest byte is the code.
      word |= ((Words)(steps + 0x1.8p23f) & 0xff) << (8 * k);
    }
    put_vector(codes + i, word);
  }
  return scale;
}

[[gnu::always_inline]] inline void decode_block(const char* codes, float scale, char* dst) {
  for (size_t i = 0; i < kPartNbytes; i += kVectorBytes) {
    const Words word = vector_at<Words>(codes + i);
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; ++k) {
      const Signed code = (Signed)(word << (24 - 8 * k)) >> 24;
      put_vector(dst + k * kPartNbytes + i, __builtin_convertvector(code, Floats) * scale);
    }
  }
}

void encode_int8(const char* src, char* dst, size_t count) {
  for (; count >= kCodecBlock; count -= kCodecBlock) {
    const float scale = encode_block(src, dst + sizeof scale);
    __builtin_memcpy(dst, &scale, sizeof scale);
    src += kCodecBlock * sizeof(float);
    dst += sizeof scale + kCodecBlock;
  }
  if (count == 0) return;
  char elements[kCodecBlock * sizeof(float)] = {};
  char codes[kCodecBlock];
  __builtin_memcpy(elements, src, count * sizeof(float));
  const float scale = encode_block(elements, codes);
  __builtin_memcpy(dst, &scale, sizeof scale);
  for (size_t i = 0; i < count; ++i) dst[sizeof scale + i] = codes[code_at(i)];
}

void decode_int8(const char* src, char* dst, size_t count) {
  float scale;
  for (; count >= kCodecBlock; count -= kCodecBlock) {
    __builtin_memcpy(&scale, src, sizeof scale);
    decode_block(src + sizeof scale, scale, dst);
    src += sizeof scale + kCodecBlock;
    dst += kCodecBlock * sizeof(float);
  }
  if (count == 0) return;
  char codes[kCodecBlock] = {};
  char elements[kCodecBlock * sizeof(float)];
  __builtin_memcpy(&scale, src, sizeof scale);
  for (size_t i = 0; i < count; ++i) codes[code_at(i)] = src[sizeof scale + i];
  decode_block(codes, scale, elements);
  __builtin_memcpy(dst, elements, count * sizeof(float));
}

// The float 2^(exponent - 127).
[[gnu::always_inline]] inline float power_of_two(int32_t exponent) {
  const int32_t bits = exponent << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return power;
}

// 256 elements to 256 halves; returns the scale.
[[gnu::always_inline]] inline float encode_scaled_block(const char* src, char* halves) {
  // The largest one's exponent; what is above 65504 times a power of two counts as the next power.
  const int32_t largest = (largest_of<true>(src) + 0x1fff) >> 23;
  const int32_t exponent = largest < 16 ? 1 : largest - 15;  // both the scale and its inverse are normal
  const float inverse = power_of_two(254 - exponent);
  for (size_t i = 0; i < kCodecBlock; i += kLanes) {
    Float16::narrow(halves + i * 2, vector_at<Floats>(src + i * sizeof(float)) * inverse);
  }
  return power_of_two(exponent);
}

[[gnu::always_inline]] inline void decode_scaled_block(const char* halves, float scale, char* dst) {
  for (size_t i = 0; i < kCodecBlock; i += kLanes) {
    put_vector(dst + i * sizeof(float), Float16::widen(halves + i * 2) * scale);
  }
}

void encode_scaled_fp16(const char* src, char* dst, size_t count) {
  for (; count >= kCodecBlock; count -= kCodecBlock) {
    const float scale = encode_scaled_block(src, dst + sizeof scale);
    __builtin_memcpy(dst, &scale, sizeof scale);
    src += kCodecBlock * sizeof(float);
    dst += sizeof scale + kCodecBlock * 2;
  }
  if (count == 0) return;
  char elements[kCodecBlock * sizeof(float)] = {};
  char halves[kCodecBlock * 2];
  __builtin_memcpy(elements, src, count * sizeof(float));
  const float scale = encode_scaled_block(elements, halves);
  __builtin_memcpy(dst, &scale, sizeof scale);
  __builtin_memcpy(dst + sizeof scale, halves, count * 2);
}

void decode_scaled_fp16(const char* src, char* dst, size_t count) {
  float scale;
  for (; count >= kCodecBlock; count -= kCodecBlock) {
    __builtin_memcpy(&scale, src, sizeof scale);
    decode_scaled_block(src + sizeof scale, scale, dst);
    src += sizeof scale + kCodecBlock * 2;
    dst += kCodecBlock * sizeof(float);
  }
  if (count == 0) return;
  char halves[kCodecBlock * 2] = {};
  char elements[kCodecBlock * sizeof(float)];
  __builtin_memcpy(&scale, src, sizeof scale);
  __builtin_memcpy(halves, src + sizeof scale, count * 2);
  decode_scaled_block(halves, scale, elements);
  __builtin_memcpy(dst, elements, count * sizeof(float));
}

void encode(Codec codec, const void* elements, std::byte* encoded, size_t count) {
  const char* const src = static_cast<const char*>(elements);
  char* const dst = reinterpret_cast<char*>(encoded);
  if (count == 0) return;
  const FloatingMode mode;
  switch (codec) {
    case Codec::kNone:
      __builtin_memcpy(dst, src, count * sizeof(float));
      return;
    case Codec::kFp16:
      return encode_half<Float16>(src, dst, count);
    case Codec::kBf16:
      return encode_half<BFloat16>(src, dst, count);
    case Codec::kInt8:
      return encode_int8(src, dst, count);
    case Codec::kScaledFp16:
      return encode_scaled_fp16(src, dst, count);
  }
}

void decode(Codec codec, const std::byte* encoded, void* elements, size_t count) {
  const char* const src = reinterpret_cast<const char*>(encoded);
  char* const dst = static_cast<char*>(elements);
  if (count == 0) return;
  const FloatingMode mode;
  switch (codec) {
    case Codec::kNone:
      __builtin_memcpy(dst, src, count * sizeof(float));
      return;
    case Codec::kFp16:
      return decode_half<Float16>(src, dst, count);
    case Codec::kBf16:
      return decode_half<BFloat16>(src, dst, count);
    case Codec::kInt8:
      return decode_int8(src, dst, count);
    case Codec::kScaledFp16:
      return decode_scaled_fp16(src, dst, count);
  }
}

}  // namespace
}  // namespace rr
