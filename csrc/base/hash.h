// Hashes of 8-byte words and of texts, for what no adversary chooses.
#pragma once

#include <cstdint>
#include <string>

namespace rr {

// The state after one more word: multiply and xorshift.
constexpr uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15ull;
  return state ^ (state >> 29);
}

// FNV-1a.
inline constexpr uint64_t kTextSeed = 0xCBF29CE484222325;
inline uint64_t hash_of_text(const std::string& text, uint64_t seed = kTextSeed) {
  for (const char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return seed;
}

}  // namespace rr
