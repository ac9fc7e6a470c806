// Twin of x86.cc for every other processor.
#include "data/isa.h"

namespace rr {

const Kernels* x86_kernels(Isa) { return nullptr; }

}  // namespace rr
