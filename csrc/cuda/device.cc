#include "cuda/device.h"

#include "cuda/image.h"

namespace rr {

bool cuda_built() { return kernel_image() != nullptr; }

}  // namespace rr
