// Twin of x86.cc for every other processor.
#include <cstring>

#include "data/kernels/isa.h"
#include "data/stream.h"

namespace rr {

const Kernels* x86_kernels(Isa) { return nullptr; }

void stream(void* dst, const void* src, size_t nbytes) {
  if (nbytes != 0) std::memcpy(dst, src, nbytes);
}

}  // namespace rr
