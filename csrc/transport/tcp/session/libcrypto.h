// What we need of OpenSSL's libcrypto, opened at run time: no header of it, nothing linked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

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

// AES-256-GCM (NIST SP 800-38D) under one key, in one direction: each message is sealed, or opened, with a number that
// serves once. One thread at a time.
class Gcm {
 public:
  using Tag = std::array<std::byte, 16>;
  enum class Direction { kSeal, kOpen };

  Gcm(const Bytes32& key, Direction direction);
  ~Gcm();
  Gcm(const Gcm&) = delete;
  Gcm& operator=(const Gcm&) = delete;

  // The tag vouches for the header and the text, which is encrypted into `out`. out may be the text itself. Both have
  // less than 2^31 bytes.
  Tag seal(uint64_t number, ByteView header, ByteView text, std::byte* out);
  // The reverse. False: the tag is of other bytes, and `out` has nothing of use.
  bool open(uint64_t number, ByteView header, const Tag& tag, ByteView text, std::byte* out);

 private:
  void transform(uint64_t number, ByteView header, ByteView text, std::byte* out);

  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;  // EVP_CIPHER_CTX
};

}  // namespace rr
