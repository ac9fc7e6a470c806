#include "engine/gpu/device_words.h"

#include <string>

#include "base/errors.h"
#include "gpu/cuda/per_device.h"

namespace rr {

std::shared_ptr<DeviceWords> DeviceWords::of(const std::shared_ptr<Device>& device) {
  return per_device<DeviceWords>(device);
}

Word DeviceWords::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    if (begun_ + replayed_ == Device::kWords) throw_exhausted();
    free_.push_back(device_->words() + begun_++);
  }
  uint32_t* const at = free_.back();
  free_.pop_back();
  return {at, __atomic_load_n(at, __ATOMIC_RELAXED) + 1};
}

Word DeviceWords::take_for_replays() {
  const std::lock_guard lock(mutex_);
  if (begun_ + replayed_ == Device::kWords) throw_exhausted();
  return {device_->words() + Device::kWords - ++replayed_, 1};
}

void DeviceWords::give_back(const Word& word) {
  const std::lock_guard lock(mutex_);
  free_.push_back(word.at);
}

size_t DeviceWords::in_use() const {
  const std::lock_guard lock(mutex_);
  return begun_ - free_.size() + replayed_;
}

void DeviceWords::throw_exhausted() const {
  throw UnavailableError("GPU " + std::to_string(device_->ordinal()) + ": all " + std::to_string(Device::kWords) +
                         " words that streams can wait for are in use, " + std::to_string(begun_ - free_.size()) +
                         " by operations in flight and " + std::to_string(replayed_) +
                         " by operations in captured graphs; synchronize handles sooner, or capture fewer operations");
}

}  // namespace rr
