#include "gpu/cuda/cuda_memory.h"

#include <vector>

namespace rr {
namespace {

// Fewer sizes, so that what was released fits again. A driver gives out no less than this anyway.
size_t rounded(size_t nbytes) {
  constexpr size_t kUnit = size_t{64} << 10;
  return (nbytes / kUnit + (nbytes % kUnit != 0 || nbytes == 0 ? 1 : 0)) * kUnit;
}

}  // namespace

CudaMemory::~CudaMemory() {
  if (context_.is_left()) return;
  const auto current = context_.current_for_freeing();
  for (const auto& [data, pinned] : pinned_) {
    if (pinned.is_ours) RR_CUDA_FREE(context_, mem_host_unregister, data);
  }
  free_spares();
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
  const size_t size = rounded(nbytes);
  const std::lock_guard lock(mutex_);
  // Not a much larger one: it may be wanted for what it was made for.
  if (const auto spare = spare_.lower_bound(size); spare != spare_.end() && spare->first <= 2 * size) {
    std::byte* const data = spare->second;
    in_use_[data] = spare->first;
    spare_nbytes_ -= spare->first;
    spare_.erase(spare);
    return data;
  }
  cu::DevicePtr at = 0;
  auto result = context_.driver().mem_alloc(&at, size);
  if (result == cu::kOutOfMemory && !spare_.empty()) {
    free_spares();
    result = context_.driver().mem_alloc(&at, size);
  }
  context_.check(result, cu::symbols::mem_alloc, std::to_string(size) + " bytes of device memory");
  in_use_[host_ptr(at)] = size;
  return host_ptr(at);
}

void CudaMemory::release(std::byte* data) {
  std::unique_lock lock(mutex_);
  const auto known = in_use_.find(data);
  if (known == in_use_.end()) throw InvalidArgumentError("release: not from allocate()");
  const size_t nbytes = known->second;
  in_use_.erase(known);
  if (spare_nbytes_ + nbytes <= kSpareNbytes) {
    spare_.emplace(nbytes, data);
    spare_nbytes_ += nbytes;
    return;
  }
  lock.unlock();  // the driver waits until the device is idle
  RR_CUDA_FREE(context_, mem_free, device_ptr(data));
}

void CudaMemory::free_spares() noexcept {
  for (const auto& [nbytes, data] : spare_) RR_CUDA_FREE(context_, mem_free, device_ptr(data));
  spare_.clear();
  spare_nbytes_ = 0;
}

}  // namespace rr
