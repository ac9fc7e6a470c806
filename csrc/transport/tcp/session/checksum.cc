#include "transport/tcp/session/checksum.h"

#include <cstring>

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace rr {
namespace {

struct Table {
  uint32_t of[256];
};

// By byte: its remainder in GF(2)[x] modulo CRC-32C's polynomial, bits reversed.
constexpr Table make_table() {
  Table table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82f63b78U : 0);
    table.of[byte] = rest;
  }
  return table;
}
constexpr Table kTable = make_table();

uint32_t step(uint32_t crc, std::byte byte) {
  return (crc >> 8) ^ kTable.of[(crc ^ static_cast<uint32_t>(byte)) & 255];
}

// Of each of the first three quarters, in words of 8 bytes; the fourth has the rest, too.
size_t quarter_words(size_t nbytes) { return nbytes / 32; }

uint64_t word_at(const std::byte* bytes, size_t index) {
  uint64_t word = 0;
  std::memcpy(&word, bytes + 8 * index, sizeof word);
  return word;
}

Checksum turned_over(const Checksum& crcs) { return {~crcs[0], ~crcs[1], ~crcs[2], ~crcs[3]}; }

#ifdef __x86_64__
__attribute__((target("sse4.2"))) Checksum checksum_sse42(uint64_t seed, const std::byte* bytes, size_t nbytes) {
  const size_t words = quarter_words(nbytes);
  const uint64_t begun = _mm_crc32_u64(UINT32_MAX, seed);
  // Variables, not an array: compilers would keep that in memory, which takes four times as long.
  uint64_t first = begun;
  uint64_t second = begun;
  uint64_t third = begun;
  uint64_t fourth = begun;
  for (size_t i = 0; i < words; ++i) {
    first = _mm_crc32_u64(first, word_at(bytes, i));
    second = _mm_crc32_u64(second, word_at(bytes, words + i));
    third = _mm_crc32_u64(third, word_at(bytes, 2 * words + i));
    fourth = _mm_crc32_u64(fourth, word_at(bytes, 3 * words + i));
  }
  auto last = static_cast<uint32_t>(fourth);
  for (size_t i = 32 * words; i < nbytes; ++i) last = _mm_crc32_u8(last, static_cast<uint8_t>(bytes[i]));
  return turned_over({static_cast<uint32_t>(first), static_cast<uint32_t>(second), static_cast<uint32_t>(third), last});
}
#endif

}  // namespace

Checksum checksum_portable(uint64_t seed, const std::byte* bytes, size_t nbytes) {
  const size_t quarter_nbytes = 8 * quarter_words(nbytes);
  Checksum crcs;
  for (size_t quarter = 0; quarter < 4; ++quarter) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < sizeof seed; ++i) crc = step(crc, static_cast<std::byte>(seed >> (8 * i)));
    const size_t end = quarter == 3 ? nbytes : (quarter + 1) * quarter_nbytes;
    for (size_t i = quarter * quarter_nbytes; i < end; ++i) crc = step(crc, bytes[i]);
    crcs[quarter] = crc;
  }
  return turned_over(crcs);
}

Checksum checksum(uint64_t seed, const std::byte* bytes, size_t nbytes) {
#ifdef __x86_64__
  static const bool has_instructions = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instructions) return checksum_sse42(seed, bytes, nbytes);
#endif
  return checksum_portable(seed, bytes, nbytes);
}

}  // namespace rr
