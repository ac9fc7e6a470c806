// A hash of 8-byte words, for what no adversary chooses.
#pragma once

#include <cstdint>

namespace rr {

// The state after one more word: multiply and xorshift.
constexpr uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15ull;
  return state ^ (state >> 29);
}

}  // namespace rr
