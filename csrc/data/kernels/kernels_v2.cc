// x86-64-v2: SSE4.2.
#include "data/kernels/isa.h"

namespace {
constexpr unsigned long kVectorBytes = 16;
}
#include "data/kernels/kernels_fp16_integer.h"  // before those that use its Float16

#include "data/kernels/kernels_codec.h"
#include "data/kernels/kernels_impl.h"

const rr::Kernels rr::kX86V2Kernels{Isa::kX86_64_v2, "x86-64-v2", reduce, reduce_to_float, encode, decode};
