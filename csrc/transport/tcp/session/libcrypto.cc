#include "transport/tcp/session/libcrypto.h"

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
  void* (*EVP_CIPHER_CTX_new)() = nullptr;
  void (*EVP_CIPHER_CTX_free)(void* context) = nullptr;
  int (*EVP_CIPHER_CTX_ctrl)(void* context, int type, int argument, void* pointer) = nullptr;
  const void* (*EVP_aes_256_gcm)() = nullptr;
  int (*EVP_CipherInit_ex)(void* context, const void* cipher, void* engine, const unsigned char* key,
                           const unsigned char* number, int encrypts) = nullptr;
  int (*EVP_CipherUpdate)(void* context, unsigned char* out, int* out_nbytes, const unsigned char* in,
                          int nbytes) = nullptr;
  int (*EVP_CipherFinal_ex)(void* context, unsigned char* out, int* out_nbytes) = nullptr;
  void (*ERR_clear_error)() = nullptr;
};

// Of openssl/evp.h.
constexpr int kGetTag = 0x10;
constexpr int kSetTag = 0x11;

void check(int returned) {
  if (returned != 1) throw InternalError("libcrypto: AES-256-GCM has failed");
}

unsigned char* chars(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

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
        find(library, "CRYPTO_memcmp", calls.CRYPTO_memcmp) &&
        find(library, "EVP_CIPHER_CTX_new", calls.EVP_CIPHER_CTX_new) &&
        find(library, "EVP_CIPHER_CTX_free", calls.EVP_CIPHER_CTX_free) &&
        find(library, "EVP_CIPHER_CTX_ctrl", calls.EVP_CIPHER_CTX_ctrl) &&
        find(library, "EVP_aes_256_gcm", calls.EVP_aes_256_gcm) &&
        find(library, "EVP_CipherInit_ex", calls.EVP_CipherInit_ex) &&
        find(library, "EVP_CipherUpdate", calls.EVP_CipherUpdate) &&
        find(library, "EVP_CipherFinal_ex", calls.EVP_CipherFinal_ex) &&
        find(library, "ERR_clear_error", calls.ERR_clear_error))
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

void Gcm::Free::operator()(void* context) const { calls().EVP_CIPHER_CTX_free(context); }

Gcm::Gcm(const Bytes32& key, Direction direction) : context_(calls().EVP_CIPHER_CTX_new()) {
  const Calls& libcrypto = calls();
  if (context_ == nullptr || libcrypto.EVP_CipherInit_ex(context_.get(), libcrypto.EVP_aes_256_gcm(), nullptr,
                                                         reinterpret_cast<const unsigned char*>(key.data()), nullptr,
                                                         direction == Direction::kSeal ? 1 : 0) != 1)
    throw InternalError("libcrypto: AES-256-GCM could not be set up");
}

Gcm::~Gcm() = default;

Gcm::Tag Gcm::seal(uint64_t number, ByteView header, ByteView text, std::byte* out) {
  transform(number, header, text, out);
  Tag tag;
  int nbytes = 0;
  const Calls& libcrypto = calls();
  check(libcrypto.EVP_CipherFinal_ex(context_.get(), chars(tag.data()), &nbytes));
  check(libcrypto.EVP_CIPHER_CTX_ctrl(context_.get(), kGetTag, static_cast<int>(tag.size()), tag.data()));
  return tag;
}

bool Gcm::open(uint64_t number, ByteView header, const Tag& tag, ByteView text, std::byte* out) {
  transform(number, header, text, out);
  Tag expected = tag;
  const Calls& libcrypto = calls();
  check(libcrypto.EVP_CIPHER_CTX_ctrl(context_.get(), kSetTag, static_cast<int>(expected.size()), expected.data()));
  unsigned char none[16];
  int nbytes = 0;
  const bool is_right = libcrypto.EVP_CipherFinal_ex(context_.get(), none, &nbytes) == 1;
  if (!is_right) libcrypto.ERR_clear_error();  // Python's ssl would find it
  return is_right;
}

void Gcm::transform(uint64_t number, ByteView header, ByteView text, std::byte* out) {
  std::array<unsigned char, 12> nonce = {};
  for (size_t i = 0; i < sizeof number; ++i) nonce[i] = static_cast<unsigned char>(number >> (8 * i));
  const Calls& libcrypto = calls();
  check(libcrypto.EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1));
  int nbytes = 0;
  const auto update = [&](unsigned char* to, ByteView from) {
    check(libcrypto.EVP_CipherUpdate(context_.get(), to, &nbytes, static_cast<const unsigned char*>(from.data),
                                     static_cast<int>(from.nbytes)));
  };
  update(nullptr, header);
  update(chars(out), text);
}

}  // namespace rr
