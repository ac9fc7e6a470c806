// x86-64-v2: SSE4.2.
#include "data/isa.h"

namespace {
constexpr unsigned long kVectorBytes = 16;
}
#include "data/kernels_fp16_integer.h"
#include "data/kernels_impl.h"
#include "data/kernels_wire.h"

const rr::Kernels rr::kX86V2Kernels{Isa::kX86_64_v2, "x86-64-v2", reduce, encode, decode};
