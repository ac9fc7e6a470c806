// The C++ tests' main(). doctest's options work: rr_tests --list-test-cases, --test-case="ring*".
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "doctest/doctest.h"

// Thread-local memory of a library that was loaded by name: GCC 12's sanitizers guess its size. Where the memory begins
// 16 bytes behind a page, they take the allocator's own header for glibc 2.19's; the leak check then reads a random
// address (one run of cuda_streams_test in eight). They are not to guess.
constexpr const char* kNoGuesses = "intercept_tls_get_addr=0";
#define RR_FOR_SANITIZER extern "C" __attribute__((visibility("default")))
RR_FOR_SANITIZER const char* __asan_default_options() { return kNoGuesses; }
RR_FOR_SANITIZER const char* __tsan_default_options() { return kNoGuesses; }
