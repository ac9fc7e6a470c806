// Mappings of the peers' GPU memory in this process, and where the memory of an operand lies for a peer to map it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "gpu/device.h"

namespace rr {

// Where an operand lies, for other processes.
struct DeviceOperand {
  DeviceExport memory;
  uint64_t offset = 0;
  uint64_t nbytes = 0;
};
// As long as what has been added to `exports` lives, others can map it.
using DeviceExports = std::vector<std::shared_ptr<void>>;
DeviceOperand device_operand(Device& device, const std::byte* data, size_t nbytes, DeviceExports& exports);

// The peers' allocations that this process has mapped for a GPU. A mapping keeps the memory that its owner has freed
// meanwhile, so those that have not been used for a while, or for longest, are forgotten. Thread-safe.
class DeviceMappings {
 public:
  // Kept though nobody uses them; also what one operation may hold: two that do so have room in Device::kImports.
  static constexpr size_t kMost = 2048;
  static constexpr double kIdleS = 30;
  explicit DeviceMappings(std::shared_ptr<Device> device, size_t most = kMost, double idle_s = kIdleS)
      : device_(std::move(device)), most_(most), idle_ns_(static_cast<int64_t>(idle_s * 1e9)) {}
  // The one of all contexts of this process that work on the device.
  static std::shared_ptr<DeviceMappings> of(const std::shared_ptr<Device>& device);

  // Where the allocation begins here; it stays until released as often.
  std::byte* hold(const DeviceExport& memory);
  void release(const std::vector<uint64_t>& uids) noexcept;
  void trim() noexcept;  // now and then
  size_t count() const;

 private:
  struct Known {
    std::byte* address = nullptr;
    size_t users = 0;
    int64_t used_ns = 0;
  };
  void forget_some(size_t wanted = 0);

  std::shared_ptr<Device> device_;
  size_t most_;
  int64_t idle_ns_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Known> known_;
};

}  // namespace rr
