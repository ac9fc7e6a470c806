// Which of the x86-64 kernel sets this processor can run. Compiled for the baseline: it runs before anything is known.
#include "data/isa.h"

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

}  // namespace rr
