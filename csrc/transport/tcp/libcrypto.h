// What we need of OpenSSL's libcrypto, opened at run time: no header of it, nothing linked.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace rr {

// The library's file, such as "libcrypto.so.3". Throws UnavailableError, with what to install, where there is none.
const char* libcrypto_name();

using Bytes32 = std::array<std::byte, 32>;

struct ByteView {
  const void* data = nullptr;
  size_t nbytes = 0;
};

// HMAC-SHA256 (RFC 2104, FIPS 198-1) of the parts, one after the other. Thread-safe.
// Throws UnavailableError, with what to install, where there is no libcrypto of OpenSSL 1.1 or 3.
Bytes32 hmac_sha256(const Bytes32& key, std::initializer_list<ByteView> parts);

// Compares in a time that does not depend on the bytes.
bool is_same(const Bytes32& one, const Bytes32& other);

// From the kernel's random number generator (getrandom(2)).
Bytes32 random_bytes();

}  // namespace rr
