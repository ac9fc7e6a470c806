// Element types in registers. The kernels are compiled without fused multiply-add and without flushing denormals, and
// the CPU's tests likewise, so both give the bits of data/reduction.h. Only what is next to __CUDA_ARCH__ differs.
#pragma once

#include "gpu/kernels/kernel_memory.h"

namespace rr::kernel {

template <class To, class From>
RR_HD To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// A double cut to float such that rounding it to a 16-bit type gives what rounding the double would: where it is
// inexact, the last bit is set ("round to odd"). NaN and the infinities stay.
RR_HD float odd_float(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  if (back == x || x != x) return nearest;
  const uint32_t bits = bits_as<uint32_t>(nearest);
  const bool too_large = (back < 0 ? -back : back) > (x < 0 ? -x : x);
  return bits_as<float>((bits - (too_large ? 1 : 0)) | 1);
}

// --- IEEE half

RR_HD float float_of_half(uint16_t half) {
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
#else
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  if (rest >= 0x7c00) return bits_as<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000 : 0));
  const float tiny = static_cast<float>(rest) * 0x1p-24f;  // what a denormal means
  return bits_as<float>(sign | (rest < 0x400 ? bits_as<uint32_t>(tiny) : (rest << 13) + ((127 - 15) << 23)));
#endif
}

// Rounded to nearest even.
RR_HD uint16_t half_of_float(float x) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#else
  const uint32_t bits = bits_as<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (rest >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
  if (rest < 0x38800000) {  // 2^-14: adding 0.5 rounds to a multiple of 2^-24
    return static_cast<uint16_t>(sign | (bits_as<uint32_t>(bits_as<float>(rest) + 0.5f) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13);
#endif
}

RR_HD uint32_t halves_of_floats(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return half_of_float(low) | static_cast<uint32_t>(half_of_float(high)) << 16;
#endif
}

// --- bfloat16, the upper half of a float

RR_HD uint32_t bfloats_of_floats(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  const auto rounded = [](float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40;
  };
  return rounded(low) | rounded(high) << 16;
#endif
}

// --- formats: kValues elements lie in kCells words of 32 bits, and are Values in registers

struct Half {
  using Value = float;
  static constexpr unsigned kNbytes = 2, kWords = 1, kValues = 2;
  static RR_HD void unpack(const uint32_t* words, Value* values) {
    values[0] = float_of_half(static_cast<uint16_t>(words[0]));
    values[1] = float_of_half(static_cast<uint16_t>(words[0] >> 16));
  }
  static RR_HD void pack(const Value* values, uint32_t* words) { words[0] = halves_of_floats(values[0], values[1]); }
  static RR_HD void pack(const double* values, uint32_t* words) {
    words[0] = halves_of_floats(odd_float(values[0]), odd_float(values[1]));
  }
};

struct BFloat {
  using Value = float;
  static constexpr unsigned kNbytes = 2, kWords = 1, kValues = 2;
  static RR_HD void unpack(const uint32_t* words, Value* values) {
    values[0] = bits_as<float>(words[0] << 16);
    values[1] = bits_as<float>(words[0] & 0xffff0000);
  }
  static RR_HD void pack(const Value* values, uint32_t* words) { words[0] = bfloats_of_floats(values[0], values[1]); }
  static RR_HD void pack(const double* values, uint32_t* words) {
    words[0] = bfloats_of_floats(odd_float(values[0]), odd_float(values[1]));
  }
};

struct Float {
  using Value = float;
  static constexpr unsigned kNbytes = 4, kWords = 1, kValues = 1;
  static RR_HD void unpack(const uint32_t* words, Value* values) { values[0] = bits_as<float>(words[0]); }
  static RR_HD void pack(const Value* values, uint32_t* words) { words[0] = bits_as<uint32_t>(values[0]); }
  static RR_HD void pack(const double* values, uint32_t* words) {
    words[0] = bits_as<uint32_t>(static_cast<float>(values[0]));
  }
};

struct Double {
  using Value = double;
  static constexpr unsigned kNbytes = 8, kWords = 2, kValues = 1;
  static RR_HD void unpack(const uint32_t* words, Value* values) {
    values[0] = bits_as<double>(words[0] | static_cast<uint64_t>(words[1]) << 32);
  }
  static RR_HD void pack(const Value* values, uint32_t* words) {
    const auto bits = bits_as<uint64_t>(values[0]);
    words[0] = static_cast<uint32_t>(bits);
    words[1] = static_cast<uint32_t>(bits >> 32);
  }
};

// The elements of a group, and back.
template <class Format, unsigned kElements, class Value>
RR_HD void unpack(const Words<kElements * Format::kNbytes>& words, Value (&values)[kElements]) {
  RR_UNROLL
  for (unsigned j = 0; j < kElements; j += Format::kValues) {
    typename Format::Value some[Format::kValues];
    Format::unpack(words.at + j / Format::kValues * Format::kWords, some);
    RR_UNROLL
    for (unsigned i = 0; i < Format::kValues; ++i) values[j + i] = some[i];
  }
}
template <class Format, unsigned kElements, class Value>
RR_HD Words<kElements * Format::kNbytes> pack(const Value (&values)[kElements]) {
  Words<kElements * Format::kNbytes> words;
  RR_UNROLL
  for (unsigned j = 0; j < kElements; j += Format::kValues) {
    Format::pack(values + j, words.at + j / Format::kValues * Format::kWords);
  }
  return words;
}

}  // namespace rr::kernel
