// The fat binary that kernels.cmake has made, in the section that cuobjdump reads.
#include "gpu/cuda/launch/image.h"

asm(".pushsection .nv_fatbin, \"a\", %progbits\n"
    ".balign 16\n"
    "rr_kernel_image:\n"
    ".incbin \"" RR_FATBIN
    "\"\n"
    ".popsection\n");

extern "C" const unsigned char rr_kernel_image[];

namespace rr {

const void* kernel_image() { return rr_kernel_image; }

}  // namespace rr
