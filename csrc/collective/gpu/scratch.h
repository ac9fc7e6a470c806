// Device memory that the operations of a group use one after the other. The executor lock is held.
#pragma once

#include <memory>

#include "base/errors.h"
#include "gpu/device.h"

namespace rr {

class ScratchMemory {
 public:
  explicit ScratchMemory(Device& device) : device_(device) {}
  // Grows to what the largest needed. Whoever is given it keeps it, also beyond this object's end; the next is given
  // the same, so it has to be through with it, unless the group has failed and there is no next.
  std::shared_ptr<std::byte> get(size_t nbytes) {
    if (nbytes <= nbytes_) return memory_;
    clear();
    memory_ = std::shared_ptr<std::byte>(device_.allocate_locked(nbytes), [&device = device_](std::byte* memory) {
      try {
        device.release(memory);
      } catch (const Error&) {
        return;  // after a sticky error of CUDA's; the memory goes with the process
      }
    });
    nbytes_ = nbytes;
    return memory_;
  }
  void clear() {
    memory_.reset();
    nbytes_ = 0;
  }

 private:
  Device& device_;
  std::shared_ptr<std::byte> memory_;
  size_t nbytes_ = 0;
};

}  // namespace rr
