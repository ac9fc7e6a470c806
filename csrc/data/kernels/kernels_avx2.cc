// AVX2 and F16C. No fused multiply-add: it would round differently from the other sets.
#include <immintrin.h>

#include "data/kernels/isa.h"

namespace {
constexpr unsigned long kVectorBytes = 32;
}
#include "data/kernels/kernels_half.h"

namespace rr {
namespace {

constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

[[gnu::always_inline]] inline __m128i load_halves(const char* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
[[gnu::always_inline]] inline void store_halves(char* to, __m128i halves) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}

struct Float16 : HalfFormat {
  [[gnu::always_inline]] static inline Floats widen(const char* from) {
    return (Floats)_mm256_cvtph_ps(load_halves(from));
  }
  [[gnu::always_inline]] static inline void narrow(char* to, Floats value) {
    store_halves(to, _mm256_cvtps_ph((__m256)value, kNearestEven));
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

const rr::Kernels rr::kAvx2Kernels{Isa::kAvx2, "avx2", reduce, reduce_to_float, encode, decode};
