// The compiled kernels, for every GPU that they were compiled for; the twins image.cc (with nvcc) and no_cuda.cc.
#pragma once

namespace rr {

const void* kernel_image();  // a fat binary, for cuModuleLoadData; null: this build has none

}  // namespace rr
