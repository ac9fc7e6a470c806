#include "transport/tcp/libcrypto.h"

#include <dlfcn.h>
#include <sys/random.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/errors.h"

namespace rr {
namespace {

struct Calls {
  const char* name = nullptr;
  const void* (*EVP_sha256)() = nullptr;
  unsigned char* (*HMAC)(const void* type, const void* key, int key_nbytes, const unsigned char* data, size_t nbytes,
                         unsigned char* mac, unsigned* mac_nbytes) = nullptr;
  int (*CRYPTO_memcmp)(const void* one, const void* other, size_t nbytes) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

Calls open_library() {
  // The numbers of OpenSSL 3 and 1.1. Python's ssl module has usually loaded one of them already.
  for (const char* const name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* const library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) continue;
    Calls calls;
    calls.name = name;
    if (find(library, "EVP_sha256", calls.EVP_sha256) && find(library, "HMAC", calls.HMAC) &&
        find(library, "CRYPTO_memcmp", calls.CRYPTO_memcmp))
      return calls;  // the library stays open until the process ends
    ::dlclose(library);
  }
  throw UnavailableError(
      "RINGREDUCE_TRANSPORT=tcp: OpenSSL's libcrypto.so.3 (or .so.1.1) was not found, and without it the hosts cannot "
      "prove who they are: install it (Debian, Ubuntu: apt-get install libssl3; Fedora: dnf install openssl-libs)");
}

const Calls& calls() {
  static const Calls opened = open_library();
  return opened;
}

}  // namespace

const char* libcrypto_name() { return calls().name; }

Bytes32 hmac_sha256(const Bytes32& key, std::initializer_list<ByteView> parts) {
  std::vector<unsigned char> message;
  for (const ByteView& part : parts) {
    const auto* const first = static_cast<const unsigned char*>(part.data);
    message.insert(message.end(), first, first + part.nbytes);
  }
  Bytes32 mac;
  unsigned nbytes = 0;
  const Calls& libcrypto = calls();
  const void* const made =
      libcrypto.HMAC(libcrypto.EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(), message.size(),
                     reinterpret_cast<unsigned char*>(mac.data()), &nbytes);
  if (made == nullptr || nbytes != mac.size()) throw InternalError("libcrypto: HMAC with SHA-256 has failed");
  return mac;
}

bool is_same(const Bytes32& one, const Bytes32& other) {
  return calls().CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Bytes32 random_bytes() {
  Bytes32 bytes;
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = ::getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (got < 0 && errno == EINTR) continue;
    have += static_cast<size_t>(check_sys(got, "getrandom"));
  }
  return bytes;
}

}  // namespace rr
