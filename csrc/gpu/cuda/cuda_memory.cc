#include "gpu/cuda/cuda_memory.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"

namespace rr {
namespace {
constexpr double kFreeingS = 10;  // for a GPU that is full to become idle
}  // namespace

CudaMemory::~CudaMemory() {
  if (context_.is_left()) return;
  const auto current = context_.current_for_freeing();
  for (const auto& [data, pinned] : pinned_) {
    if (pinned.is_ours) RR_CUDA_FREE(context_, mem_host_unregister, data);
  }
  free_released();
  for (const auto& [data, nbytes] : in_use_) RR_CUDA_FREE(context_, mem_free, device_ptr(data));
}

void CudaMemory::pin(std::byte* data, size_t nbytes) {
  const std::lock_guard lock(mutex_);
  Pinned& pinned = pinned_[data];
  if (pinned.users++ != 0) return;
  const std::string doing = "pinning " + std::to_string(nbytes) + " bytes of host memory";
  try {
    const auto result =
        context_.driver().mem_host_register(data, nbytes, cu::kHostRegisterPortable | cu::kHostRegisterDevicemap);
    pinned.is_ours = result == cu::kSuccess;
    if (result != cu::kHostMemoryAlreadyRegistered) context_.check(result, cu::symbols::mem_host_register, doing);
    // Kernels and copies take host addresses. The far end too: what overlaps half of it counts as registered as well.
    for (std::byte* const end : {data, data + nbytes - 1}) {
      cu::DevicePtr on_device = 0;
      context_.check(context_.driver().mem_host_get_device_pointer(&on_device, end, 0),
                     cu::symbols::mem_host_get_device_pointer, doing);
      if (on_device == device_ptr(end)) continue;
      throw UnavailableError("CUDA: " + context_.where() +
                             " knows pinned host memory by other addresses than the host, " +
                             "so its kernels cannot work on it; RINGREDUCE_GPU_PATH=nccl does without");
    }
  } catch (const Error&) {
    if (pinned.is_ours) context_.driver().mem_host_unregister(data);
    pinned_.erase(data);
    throw;
  }
}

void CudaMemory::unpin(std::byte* data) {
  if (context_.is_left()) return;
  {
    const std::lock_guard lock(mutex_);
    const auto known = pinned_.find(data);
    if (known == pinned_.end() || --known->second.users != 0) return;
    const bool is_ours = known->second.is_ours;
    pinned_.erase(known);
    if (!is_ours) return;
  }
  // Not under the lock: the driver waits until the device is idle, and others may want memory meanwhile.
  RR_CUDA_FREE(context_, mem_host_unregister, data);
}

std::byte* CudaMemory::allocate(size_t nbytes) {
  const size_t size = std::max<size_t>(1, nbytes);
  cu::DevicePtr at = 0;
  auto result = context_.driver().mem_alloc(&at, size);
  const Deadline deadline = Deadline::after_s(kFreeingS);
  while (result == cu::kOutOfMemory && (released_nbytes() != 0 || freeing_ != 0) && !context_.is_left() &&
         !deadline.passed()) {
    free_released();
    result = context_.driver().mem_alloc(&at, size);
    if (result == cu::kOutOfMemory) std::this_thread::yield();  // another thread frees
  }
  context_.check(result, cu::symbols::mem_alloc, std::to_string(size) + " bytes of device memory");
  return add(at, size);
}

std::byte* CudaMemory::allocate_at_once(size_t nbytes) {
  const size_t size = std::max<size_t>(1, nbytes);
  cu::DevicePtr at = 0;
  const auto result = context_.driver().mem_alloc(&at, size);
  const std::string doing = std::to_string(size) + " bytes of device memory";
  if (result == cu::kOutOfMemory) {  // also what others free just now, or operations still hold, will be room
    throw DeviceBusyError("CUDA: " + context_.where() + ": " + doing +
                          ": the GPU is full, and nothing can be freed while operations of NCCL's are under way");
  }
  context_.check(result, cu::symbols::mem_alloc, doing);
  return add(at, size);
}

std::byte* CudaMemory::add(cu::DevicePtr at, size_t nbytes) {
  const std::lock_guard lock(mutex_);
  in_use_[host_ptr(at)] = nbytes;
  return host_ptr(at);
}

void CudaMemory::release(std::byte* data) {
  const std::lock_guard lock(mutex_);
  const auto known = in_use_.find(data);
  if (known == in_use_.end()) throw InvalidArgumentError("release: not from allocate()");
  released_.push_back(data);
  released_nbytes_ += known->second;
  in_use_.erase(known);
}

void CudaMemory::free_released() {
  if (context_.is_left()) return;
  std::vector<std::byte*> released;
  {
    const std::lock_guard lock(mutex_);
    released.swap(released_);
    released_nbytes_ = 0;
    ++freeing_;
  }
  for (std::byte* const data : released) RR_CUDA_FREE(context_, mem_free, device_ptr(data));
  --freeing_;
}

}  // namespace rr
