// Every processor: 16-byte vectors, which the compiler lowers to what there is.
#include "data/isa.h"

namespace {
constexpr unsigned long kVectorBytes = 16;
}
#include "data/kernels_fp16_integer.h"
#include "data/kernels_impl.h"
#include "data/kernels_wire.h"

const rr::Kernels rr::kPortableKernels{Isa::kPortable, "portable", reduce, encode, decode};
