// The kernel sets that this build has. Each is a constant, defined in its own file under its own compiler flags.
#pragma once

#include "data/reduction.h"

namespace rr {

extern const Kernels kPortableKernels;
extern const Kernels kX86V2Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

// Null when the set is not in this build or the processor (or its operating system) cannot run it.
// Defined by x86.cc or its twin no_x86.cc.
const Kernels* x86_kernels(Isa isa);

}  // namespace rr
