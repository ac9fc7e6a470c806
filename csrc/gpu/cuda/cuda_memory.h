// Memory of a GPU that is ours, and host memory that it reaches.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "gpu/cuda/cuda_context.h"

namespace rr {

// From any thread, with the context current.
class CudaMemory {
 public:
  explicit CudaMemory(const CudaContext& context) : context_(context) {}
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  void pin(std::byte* data, size_t nbytes);
  void unpin(std::byte* data);

  std::byte* allocate(size_t nbytes);
  std::byte* allocate_at_once(size_t nbytes);  // frees nothing to make room
  void release(std::byte* data);
  void free_released();
  size_t released_nbytes() {
    const std::lock_guard lock(mutex_);
    return released_nbytes_;
  }

 private:
  std::byte* add(cu::DevicePtr at, size_t nbytes);
  struct Pinned {
    int users = 0;
    bool is_ours = true;  // else somebody had registered it before
  };
  const CudaContext& context_;
  std::mutex mutex_;
  std::map<std::byte*, Pinned> pinned_;
  std::map<std::byte*, size_t> in_use_;
  std::vector<std::byte*> released_;
  size_t released_nbytes_ = 0;
  std::atomic<int> freeing_{0};  // threads
};

inline cu::DevicePtr device_ptr(const void* at) { return reinterpret_cast<uintptr_t>(at); }
inline std::byte* host_ptr(cu::DevicePtr at) { return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(at)); }

}  // namespace rr
