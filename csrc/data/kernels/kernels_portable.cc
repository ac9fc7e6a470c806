// Every processor: 16-byte vectors, which the compiler lowers to what there is.
#include "data/kernels/isa.h"

namespace {
constexpr unsigned long kVectorBytes = 16;
}
#include "data/kernels/kernels_fp16_integer.h"  // before those that use its Float16

#include "data/kernels/kernels_codec.h"
#include "data/kernels/kernels_impl.h"

const rr::Kernels rr::kPortableKernels{Isa::kPortable, "portable", reduce, reduce_to_float, encode, decode};
