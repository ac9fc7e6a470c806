// What is particular to x86-64: which kernel sets this processor can run, and stores past the caches. Compiled for the
// baseline: it runs before anything is known.
#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "data/kernels/isa.h"
#include "data/stream.h"

namespace rr {

const Kernels* x86_kernels(Isa isa) {
  __builtin_cpu_init();
  // Each list names every feature its file is compiled with: the compiler may use any of them anywhere in the file.
  const bool v2 = __builtin_cpu_supports("sse3") && __builtin_cpu_supports("ssse3") &&
                  __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") &&
                  __builtin_cpu_supports("popcnt");
  const bool avx2 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::kX86_64_v2:
      return v2 ? &kX86V2Kernels : nullptr;
    case Isa::kAvx2:
      return avx2 ? &kAvx2Kernels : nullptr;
    case Isa::kAvx512:
      return avx512 ? &kAvx512Kernels : nullptr;
    default:
      return nullptr;
  }
}

void stream(void* dst, const void* src, size_t nbytes) {
  constexpr size_t kLine = 64;
  constexpr size_t kVectors = kLine / sizeof(__m128i);
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  const size_t head = std::min(nbytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  const size_t body = (nbytes - head) / kLine * kLine;
  const size_t tail = nbytes - head - body;
  if (head != 0) std::memcpy(to, from, head);
  for (size_t offset = head; offset < head + body; offset += kLine) {
    __m128i line[kVectors];
    std::memcpy(line, from + offset, kLine);
    __m128i* at = reinterpret_cast<__m128i*>(to + offset);
    for (size_t i = 0; i < kVectors; ++i) _mm_stream_si128(at + i, line[i]);
  }
  if (tail != 0) std::memcpy(to + head + body, from + head + body, tail);
  _mm_sfence();  // these stores are ordered by nothing else
}

}  // namespace rr
