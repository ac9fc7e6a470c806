// Memory of a GPU that is ours, host memory that it reaches, and the words that streams hold for.
#pragma once

#include <map>
#include <mutex>

#include "gpu/cuda/cuda_context.h"
#include "gpu/cuda/cuda_holds.h"

namespace rr {

// From any thread, with the context current.
class CudaMemory {
 public:
  CudaMemory(const CudaContext& context, CudaHolds& holds);
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  uint32_t* words() const { return words_; }
  // Of one of words(), as the device knows it; throws InvalidArgumentError for others.
  cu::DevicePtr device_address(const uint32_t* word) const;

  void pin(std::byte* data, size_t nbytes);
  void unpin(std::byte* data);

  // What has been released is given out again: cuMemFree waits until the device is idle. Up to kSpareNbytes are kept.
  std::byte* allocate(size_t nbytes);
  void release(std::byte* data);
  static constexpr size_t kSpareNbytes = size_t{256} << 20;

 private:
  struct Pinned {
    int users = 0;
    bool is_ours = true;  // else somebody had registered it before
  };
  void free_spares() noexcept;

  const CudaContext& context_;
  CudaHolds& holds_;
  uint32_t* words_ = nullptr;
  cu::DevicePtr words_on_device_ = 0;
  std::mutex mutex_;
  std::map<std::byte*, Pinned> pinned_;
  std::map<std::byte*, size_t> in_use_;
  std::multimap<size_t, std::byte*> spare_;  // by size
  size_t spare_nbytes_ = 0;
};

inline cu::DevicePtr device_ptr(const void* at) { return reinterpret_cast<uintptr_t>(at); }
inline std::byte* host_ptr(cu::DevicePtr at) { return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(at)); }

}  // namespace rr
