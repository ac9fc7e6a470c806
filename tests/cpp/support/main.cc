// The C++ tests' main(). doctest's options work: rr_tests --list-test-cases, --test-case="ring*".
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "doctest/doctest.h"

// Thread-local memory of a library that was loaded by name: GCC 12's sanitizers guess its size. Where the memory begins
// 16 bytes behind a page, they take the allocator's own header for glibc 2.19's; the leak check then reads a random
// address (one run of cuda_streams_test in eight). They are not to guess.
#define RR_NO_GUESSES "intercept_tls_get_addr=0"
#define RR_FOR_SANITIZER extern "C" __attribute__((visibility("default")))
// Freed memory is used again after 16 MiB of later frees, not 256: fewer pages are touched for the first time.
RR_FOR_SANITIZER const char* __asan_default_options() { return RR_NO_GUESSES ":quarantine_size_mb=16"; }
RR_FOR_SANITIZER const char* __tsan_default_options() { return RR_NO_GUESSES; }

// An exception that two threads hold is destroyed by the one that lets go last. libstdc++ counts holders by an atomic
// counter, and is not compiled with the sanitizer, which therefore sees no order between a look at the exception and
// its end. (A failed operation's error: the engine's thread may let go after the rank that raised it.)
RR_FOR_SANITIZER const char* __tsan_default_suppressions() {
  return "race:rr::Error::~Error\nrace:std::runtime_error::~runtime_error\n";
}
