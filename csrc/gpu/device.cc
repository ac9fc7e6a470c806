#include "gpu/device.h"

#include "gpu/cuda/launch/image.h"

namespace rr {

bool cuda_built() { return kernel_image() != nullptr; }

}  // namespace rr
