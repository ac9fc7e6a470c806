// AVX-512 with 64-byte vectors. Half precision only converts: the arithmetic of AVX512-FP16 would round at every step.
#include <immintrin.h>

#include "data/isa.h"

namespace {
constexpr unsigned long kVectorBytes = 64;
}
#include "data/kernels_vectors.h"

namespace rr {
namespace {

// The same instructions as without a mask, whose intrinsics start from an undefined vector that GCC 12 warns about.
constexpr __mmask16 kAll = 0xffff;

[[gnu::always_inline]] inline Floats widen_fp16(Halves halves) { return (Floats)_mm512_maskz_cvtph_ps(kAll, (__m256i)halves); }

[[gnu::always_inline]] inline Halves narrow_fp16(Floats value) {
  return (Halves)_mm512_maskz_cvtps_ph(kAll, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace
}  // namespace rr

#include "data/kernels_impl.h"

const rr::Kernels rr::kAvx512Kernels{Isa::kAvx512, "avx512", reduce};
