// The kernels: every body of kernel_list.h under its name. Compiled by nvcc with -fmad=false.
#include <type_traits>

#include "gpu/kernels/kernel_codec.h"
#include "gpu/kernels/kernel_fold.h"
#include "gpu/kernels/kernel_list.h"
#include "gpu/kernels/kernel_move.h"
#include "gpu/kernels/kernel_wide.h"

namespace rr::kernel {
namespace {

template <class Kernel>
__device__ __forceinline__ void run(const LaunchArgument& argument) {
  const Table table{argument.table != nullptr ? argument.table : argument.inlined};
  const Where where{blockIdx.x, threadIdx.x};
  if constexpr (std::is_same_v<Kernel, EncodeInt8>) {
    __shared__ uint32_t slots[kWarps][kWarpSize];
    Warp<EncodeInt8::State> warp{where.thread % kWarpSize, slots[where.thread / kWarpSize], {}};
    Kernel::run(table, where, warp);
  } else {
    Kernel::run(table, where);
  }
}

}  // namespace
}  // namespace rr::kernel

using namespace rr::kernel;

#define RR_KERNEL(name, ...)                                                   \
  extern "C" __global__ void __launch_bounds__(kBlock, (__VA_ARGS__::kBlocks)) \
      name(const __grid_constant__ rr::LaunchArgument argument) {              \
    run<__VA_ARGS__>(argument);                                                \
  }
RR_KERNELS(RR_KERNEL)
