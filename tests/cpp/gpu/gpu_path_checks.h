// What tests of one path share that run an algorithm without a group.
#pragma once

#include <cstring>

#include "collective/algorithm.h"
#include "fakes/fake_device.h"
#include "support/expect.h"

namespace rr::test {

using rr_test::Bytes;

// Device memory with these bytes, until the device ends.
inline std::byte* put(FakeDevice& device, const Bytes& bytes) {
  std::byte* const memory = device.allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(FakeDevice::host(memory), bytes.data(), bytes.size());
  return memory;
}

inline Bytes get(const std::byte* memory, size_t nbytes) {
  Bytes bytes(nbytes);
  if (nbytes != 0) std::memcpy(bytes.data(), FakeDevice::host(memory), nbytes);
  return bytes;
}

// Rank `from`'s block for rank `to`: bytes that tell both.
inline Bytes block(int from, int to, size_t nbytes) {
  Bytes bytes(nbytes);
  for (size_t i = 0; i < nbytes; ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 + static_cast<size_t>(from * 31 + to * 101));
  return bytes;
}

// Steps until it is done; 60 s at most.
inline void finish(Algorithm& algorithm) {
  wait_for([&] { return algorithm.step() == Step::kDone; });
}

}  // namespace rr::test
