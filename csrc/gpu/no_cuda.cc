// A build without nvcc: no kernels, hence no device.

#include "gpu/cuda/image.h"

namespace rr {

const void* kernel_image() { return nullptr; }

}  // namespace rr
