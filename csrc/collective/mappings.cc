// Mappings of the peers' GPU memory in this process.

#include "base/errors.h"
#include "collective/ipc.h"

namespace rr {

DeviceOperand device_operand(Device& device, const std::byte* data, size_t nbytes) {
  DeviceOperand operand;
  operand.nbytes = nbytes;
  if (nbytes != 0) operand.memory = device.exported(data, nbytes, operand.offset);
  return operand;
}

std::byte* DeviceMappings::hold(const DeviceExport& memory) {
  const auto found = known_.find(memory.uid);
  if (found != known_.end()) {
    ++found->second.users;
    return found->second.address;
  }
  std::byte* const address = device_.imported(memory);
  known_[memory.uid] = {address, 1, 0};
  return address;
}

void DeviceMappings::release(const std::vector<uint64_t>& uids) noexcept {
  ++clock_;
  for (const uint64_t uid : uids) {
    Known& known = known_.at(uid);
    --known.users;
    known.used = clock_;
  }
  while (known_.size() > most_) {
    auto oldest = known_.end();
    for (auto at = known_.begin(); at != known_.end(); ++at) {
      if (at->second.users == 0 && (oldest == known_.end() || at->second.used < oldest->second.used)) oldest = at;
    }
    if (oldest == known_.end()) return;
    const uint64_t uid = oldest->first;
    known_.erase(oldest);
    try {
      device_.forget(uid);
    } catch (const Error&) {
      return;  // after a sticky error everything fails; the next call says so
    }
  }
}

}  // namespace rr
