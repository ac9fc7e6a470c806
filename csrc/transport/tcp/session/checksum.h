// What is not encrypted is checked: four CRC-32C (RFC 3720, B.4), one for each quarter of the bytes.
//
// Four at once are as fast as the processor's CRC instructions go: one on its own waits 3 cycles for each 8 bytes. They
// notice what a link, a switch or a broken machine changes by chance, not what somebody changes on purpose.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace rr {

using Checksum = std::array<uint32_t, 4>;

// seed: goes into all four, so that the same bytes with another seed have another checksum.
Checksum checksum(uint64_t seed, const std::byte* bytes, size_t nbytes);
// Without the processor's instructions (SSE 4.2), for tests; the same result.
Checksum checksum_portable(uint64_t seed, const std::byte* bytes, size_t nbytes);

}  // namespace rr
