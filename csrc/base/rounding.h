// Sizes in whole blocks.
#pragma once

#include <cstddef>

namespace rr {

inline constexpr size_t kCacheLine = 64;  // bytes

constexpr size_t divide_up(size_t a, size_t b) { return a / b + (a % b != 0); }
constexpr size_t round_up(size_t a, size_t b) { return divide_up(a, b) * b; }

}  // namespace rr
