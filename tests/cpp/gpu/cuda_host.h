// The kernels' bodies on the CPU, for tests: the same functions that kernels.cu wraps, over all blocks and threads.
#pragma once

namespace rr {

// params as cuLaunchKernel takes them: params[0] is the address of a LaunchArgument. False: there is no such kernel.
bool run_on_host(const char* kernel, unsigned grid, unsigned block, void* const* params);

}  // namespace rr
