// AVX-512. Half precision only converts: the arithmetic of AVX512-FP16 would round at every step.
#include <immintrin.h>

#include "data/kernels/isa.h"

namespace {
constexpr unsigned long kVectorBytes = 64;
}
#include "data/kernels/kernels_half.h"

namespace rr {
namespace {

// With a mask of all lanes: without one, the intrinsics start from an undefined vector that GCC 12 warns about.
constexpr __mmask16 kAll = 0xffff;
constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

[[gnu::always_inline]] inline __m256i load_halves(const char* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
[[gnu::always_inline]] inline void store_halves(char* to, __m256i halves) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}

struct Float16 : HalfFormat {
  [[gnu::always_inline]] static inline Floats widen(const char* from) {
    return (Floats)_mm512_maskz_cvtph_ps(kAll, load_halves(from));
  }
  [[gnu::always_inline]] static inline void narrow(char* to, Floats value) {
    store_halves(to, _mm512_maskz_cvtps_ph(kAll, (__m512)value, kNearestEven));
  }
  [[gnu::always_inline]] static inline void load(Floats* parts, const char* from) {
#pragma GCC unroll 2
    for (size_t p = 0; p < kParts; ++p) parts[p] = widen(from + p * kBytes / 2);
  }
  [[gnu::always_inline]] static inline void store(char* to, const Floats* parts) {
#pragma GCC unroll 2
    for (size_t p = 0; p < kParts; ++p) narrow(to + p * kBytes / 2, parts[p]);
  }
};

}  // namespace
}  // namespace rr

#include "data/kernels/kernels_codec.h"
#include "data/kernels/kernels_impl.h"

const rr::Kernels rr::kAvx512Kernels{Isa::kAvx512, "avx512", reduce, reduce_to_float, encode, decode};
