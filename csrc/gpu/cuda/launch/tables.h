// From the arguments of Device's move, fold, encode and decode to launches of kernels. Plain C++, no device needed.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/table_layout.h"

namespace rr {

// A launch. The table depends on the arguments alone, so who launches the same list again may keep what was uploaded.
struct Launch {
  const char* kernel = nullptr;  // its name in kernel_image()
  unsigned grid = 0;             // blocks; 0: there is nothing to do
  unsigned block = 0;            // threads of a block; shared memory is static
  std::vector<std::byte> table;

  bool needs_upload() const { return table.size() > sizeof LaunchArgument::inlined; }
  // uploaded: where the table is on the device until the kernel has ended; null where needs_upload() is false.
  LaunchArgument argument(const std::byte* uploaded) const;
};

// multiprocessors: how many of them the launch may fill. Parts and folds without elements are left out.
// Throws InvalidArgumentError for a cast between other types than floating-point ones, and for a factor on bool.
Launch move_launch(const std::vector<DevicePart>& parts, DType from, DType to, double factor, unsigned multiprocessors);
Launch fold_launch(const std::vector<DeviceFold>& folds, const Reduction& reduction, unsigned multiprocessors);
Launch encode_launch(Codec codec, const std::byte* src, std::byte* dst, size_t count, unsigned multiprocessors);
Launch decode_launch(Codec codec, const std::byte* src, std::byte* dst, size_t count, unsigned multiprocessors);

// Every name that a Launch may have, for whoever looks them up at the start.
const std::vector<const char*>& kernel_names();

}  // namespace rr
