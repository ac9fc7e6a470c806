#include "collective/gpu/ipc_mappings.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "gpu/cuda/per_device.h"

namespace rr {

DeviceOperand device_operand(Device& device, const std::byte* data, size_t nbytes, DeviceExports& exports) {
  DeviceOperand operand;
  operand.nbytes = nbytes;
  if (nbytes == 0) return operand;
  std::shared_ptr<void> keep;
  operand.memory = device.exported(data, nbytes, operand.offset, keep);
  if (keep != nullptr) exports.push_back(std::move(keep));
  return operand;
}

std::shared_ptr<DeviceMappings> DeviceMappings::of(const std::shared_ptr<Device>& device) {
  return per_device<DeviceMappings>(device);
}

std::byte* DeviceMappings::hold(const DeviceExport& memory) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(memory.uid);
  if (found != known_.end()) {
    ++found->second.users;
    return found->second.address;
  }
  if (known_.size() >= most_) forget_some(1);
  std::byte* const address = device_->imported(memory);
  known_[memory.uid] = {address, 1, 0};
  return address;
}

void DeviceMappings::release(const std::vector<uint64_t>& uids) noexcept {
  const std::lock_guard lock(mutex_);
  const int64_t now = now_ns();
  for (const uint64_t uid : uids) {
    Known& known = known_.at(uid);
    --known.users;
    known.used_ns = now;
  }
  if (known_.size() > most_) forget_some();
}

void DeviceMappings::trim() noexcept {
  const std::lock_guard lock(mutex_);
  forget_some();
}

// So that there is room for `wanted` more, as far as nobody uses them. mutex_ held.
void DeviceMappings::forget_some(size_t wanted) {
  std::vector<std::pair<int64_t, uint64_t>> unused;  // longest first
  for (const auto& [uid, known] : known_) {
    if (known.users == 0) unused.emplace_back(known.used_ns, uid);
  }
  std::sort(unused.begin(), unused.end());
  const int64_t since = now_ns() - idle_ns_;
  for (const auto& [used_ns, uid] : unused) {
    if (known_.size() + wanted <= most_ && used_ns > since) return;
    known_.erase(uid);
    try {
      device_->forget(uid);
    } catch (const Error&) {
      return;  // after a sticky error everything fails; the next call says so
    }
  }
}

size_t DeviceMappings::count() const {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

}  // namespace rr
