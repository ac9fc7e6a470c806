// A set of ranks, as plain memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace rr {

inline constexpr int kMaxRanks = 4096;

struct RankMask {
  uint64_t words[kMaxRanks / 64];
  RankMask() : words{} {}
  // Of a group of so many ranks: to clear all 512 bytes takes 10 of the 150 ns of a call of a few bytes. The words of
  // further ranks have no value: compare and copy by equals() and assign().
  explicit RankMask(int size) { std::fill_n(words, nbytes_of(size) / sizeof(uint64_t), 0); }
  // Of the words that a group of so many ranks uses.
  static size_t nbytes_of(int size) { return (static_cast<size_t>(size) + 63) / 64 * sizeof(uint64_t); }
  bool test(int rank) const { return (words[rank / 64] >> (rank % 64) & 1) != 0; }
  void set(int rank) { words[rank / 64] |= uint64_t{1} << (rank % 64); }
  void clear(int rank) { words[rank / 64] &= ~(uint64_t{1} << (rank % 64)); }
  // The lowest rank; the mask is not empty.
  int first() const {
    int rank = 0;
    while (!test(rank)) ++rank;
    return rank;
  }
  bool has_any_of(const std::vector<int>& ranks) const {
    for (const int rank : ranks) {
      if (test(rank)) return true;
    }
    return false;
  }
  // Of the words that a group of so many ranks uses, and of no others.
  bool equals(const RankMask& other, int size) const { return std::memcmp(words, other.words, nbytes_of(size)) == 0; }
  void assign(const RankMask& other, int size) { std::memcpy(words, other.words, nbytes_of(size)); }
};

}  // namespace rr
