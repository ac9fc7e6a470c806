// A build without nvcc: no kernels, hence no device.

#include "gpu/cuda/launch/image.h"

namespace rr {

const void* kernel_image() { return nullptr; }

}  // namespace rr
