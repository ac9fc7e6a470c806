// Host memory that work streams of a GPU copy from and to, for rr_gpu and for the tests of CudaDevice.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

#include "gpu/device.h"

namespace rr {

// Pages that nobody has pinned, zero at first. The caller unmaps them, or the end of the process.
inline std::byte* pages(size_t nbytes) {
  void* const at = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(at);
}

// Pinned host memory. Pages, zero at first.
class HostMemory {
 public:
  HostMemory(Device& device, size_t nbytes) : device_(device), nbytes_(nbytes), data_(pages(nbytes)) {
    device_.pin(data_, nbytes_);
  }
  ~HostMemory() {
    device_.unpin(data_);
    ::munmap(data_, nbytes_);
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  std::byte* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  Device& device_;
  size_t nbytes_;
  std::byte* data_;
};

}  // namespace rr
