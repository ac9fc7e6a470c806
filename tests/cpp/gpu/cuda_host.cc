#include "gpu/cuda_host.h"

#include <cstring>
#include <type_traits>

#include "gpu/kernels/kernel_codec.h"
#include "gpu/kernels/kernel_fold.h"
#include "gpu/kernels/kernel_list.h"
#include "gpu/kernels/kernel_move.h"
#include "gpu/kernels/kernel_wide.h"

namespace rr {
namespace {

using namespace kernel;

template <class Kernel>
void run(const Table& table, unsigned grid) {
  for (unsigned block = 0; block < grid; ++block) {
    if constexpr (std::is_same_v<Kernel, EncodeInt8>) {
      for (unsigned thread = 0; thread < kBlock; thread += kWarpSize) {
        Warp<EncodeInt8::State> warp;
        Kernel::run(table, {block, thread}, warp);
      }
    } else {
      for (unsigned thread = 0; thread < kBlock; ++thread) Kernel::run(table, {block, thread});
    }
  }
}

}  // namespace

bool run_on_host(const char* kernel, unsigned grid, unsigned block, void* const* params) {
  if (block != kBlock) return false;
  const auto& argument = *static_cast<const LaunchArgument*>(params[0]);
  const Table table{argument.table != nullptr ? argument.table : argument.inlined};
#define RR_RUN(name, ...) \
  if (std::strcmp(kernel, #name) == 0) return run<__VA_ARGS__>(table, grid), true;
  RR_KERNELS(RR_RUN)
#undef RR_RUN
  return false;
}

}  // namespace rr
