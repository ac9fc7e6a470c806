// What a reduction must give, one element at a time, with none of the kernels' code: 16-bit floats by ldexp and
// nearbyint, integers by __int128.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "data/reduction.h"

namespace rr_test {

using rr::DType;
using rr::ReduceOp;
using rr::Reduction;
using Bytes = std::vector<uint8_t>;

struct HalfFormat {
  int mantissa_bits, lowest_exponent, infinity;
};
constexpr HalfFormat kFp16{10, -14, 0x7c00};
constexpr HalfFormat kBf16{7, -126, 0x7f80};

float decode(HalfFormat format, uint16_t bits);
uint16_t encode(HalfFormat format, double value);

template <class T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void put(Bytes& out, size_t i, T value) {
  std::memcpy(&out[i * sizeof(T)], &value, sizeof value);
}

Bytes oracle(const Reduction& r, const std::vector<Bytes>& inputs);

// The same bits, except that one NaN is as good as another.
bool same(DType dtype, const uint8_t* got, const uint8_t* want, size_t count);

}  // namespace rr_test
