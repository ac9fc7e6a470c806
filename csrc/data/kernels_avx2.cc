// AVX2 and F16C. No fused multiply-add: it would round differently from the other sets.
#include <immintrin.h>

#include "data/isa.h"

namespace {
constexpr unsigned long kVectorBytes = 32;
}
#include "data/kernels_vectors.h"

namespace rr {
namespace {

[[gnu::always_inline]] inline Floats widen_fp16(Halves halves) { return (Floats)_mm256_cvtph_ps((__m128i)halves); }

[[gnu::always_inline]] inline Halves narrow_fp16(Floats value) {
  return (Halves)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace
}  // namespace rr

#include "data/kernels_impl.h"

const rr::Kernels rr::kAvx2Kernels{Isa::kAvx2, "avx2", reduce};
