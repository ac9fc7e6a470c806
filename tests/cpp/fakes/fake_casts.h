// What a fake GPU casts, element by element and apart from the code under test.
#pragma once

#include <cstring>

#include "base/errors.h"
#include "support/reduce_oracle.h"

namespace rr::test {

inline double read_number(const std::byte* at, DType dtype) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(at);
  switch (dtype) {
    case DType::kFloat16:
      return static_cast<double>(rr_test::decode(rr_test::kFp16, rr_test::load<uint16_t>(bytes)));
    case DType::kBFloat16:
      return static_cast<double>(rr_test::decode(rr_test::kBf16, rr_test::load<uint16_t>(bytes)));
    case DType::kFloat32:
      return static_cast<double>(rr_test::load<float>(bytes));
    case DType::kFloat64:
      return rr_test::load<double>(bytes);
    default:
      throw InvalidArgumentError("the fake GPU casts floating point only");
  }
}
inline void write_number(std::byte* at, DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kFloat64) {
    std::memcpy(at, &value, sizeof value);
  } else if (dtype == DType::kFloat32) {
    std::memcpy(at, &narrow, sizeof narrow);
  } else {
    const uint16_t bits = rr_test::encode(dtype == DType::kFloat16 ? rr_test::kFp16 : rr_test::kBf16, narrow);
    std::memcpy(at, &bits, sizeof bits);
  }
}

// Device::move of one part.
inline void convert(const std::byte* src, std::byte* dst, size_t count, DType from, DType to, double factor) {
  if (from == to && factor == 1.0) {
    std::memmove(dst, src, count * itemsize(from));
    return;
  }
  const bool is_double = from == DType::kFloat64 || to == DType::kFloat64;
  for (size_t i = 0; i < count; ++i) {
    const double value = read_number(src + i * itemsize(from), from);
    const double scaled =
        is_double ? value * factor : static_cast<double>(static_cast<float>(value) * static_cast<float>(factor));
    write_number(dst + i * itemsize(to), to, scaled);
  }
}

}  // namespace rr::test
