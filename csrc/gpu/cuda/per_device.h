// Objects of which there is one for each device of the process.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "base/never_destroyed.h"
#include "gpu/device.h"

namespace rr {

// The device's T, made of the device by whoever asks first, and gone with its last user.
template <class T>
std::shared_ptr<T> per_device(const std::shared_ptr<Device>& device) {
  struct Known {
    std::mutex mutex;
    std::map<Device*, std::weak_ptr<T>> by_device;
  };
  static auto& known = never_destroyed<Known>();
  const std::lock_guard lock(known.mutex);
  std::weak_ptr<T>& one = known.by_device[device.get()];
  std::shared_ptr<T> shared = one.lock();
  if (shared == nullptr) one = shared = std::make_shared<T>(device);
  return shared;
}

}  // namespace rr
