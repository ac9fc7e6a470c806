#include "gpu/cuda/cuda_context.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace rr {
namespace {

const char* advice(cu::Result result) {
  switch (result) {
    case cu::kOutOfMemory:
      return "; the GPU's memory is used up: a smaller batch, or fewer ranks on this GPU; for memory that torch keeps "
             "but does not use, torch.cuda.empty_cache()";
    case cu::kPeerAccessUnsupported:
    case cu::kTooManyPeers:
      return "; these GPUs cannot reach each other's memory: RINGREDUCE_GPU_PATH=nccl or staged does without";
    case cu::kNotPermitted:
    case cu::kNotSupported:
    case cu::kOperatingSystem:
    case cu::kMapFailed:
      return "; in a container, memory of other processes may need --ipc=host or the same pid namespace; "
             "RINGREDUCE_GPU_PATH=nccl or staged does without";
    case cu::kUnsupportedPtxVersion:
    case cu::kNoBinaryForGpu:
    case cu::kInvalidImage:
      return "; the kernels in this build are for other GPUs, or for a newer driver: update the driver, or build "
             "ringreduce with the CUDA of this one";
    case cu::kNotInitialized:
      return "; in a forked child CUDA cannot be used: start processes by spawn instead";
    case cu::kStreamCaptureUnsupported:
    case cu::kStreamCaptureInvalidated:
    case cu::kStreamCaptureImplicit:
      return "; a CUDA graph is being captured, and this is not what one may do meanwhile";
    default:
      return is_sticky(result) ? "; the context is lost, and only a new process gets another; "
                                 "compute-sanitizer, or CUDA_LAUNCH_BLOCKING=1, finds the kernel that did it"
                               : "";
  }
}

}  // namespace

CudaContext::CudaContext(std::shared_ptr<const CudaDriver> driver, int ordinal)
    : driver_(std::move(driver)), ordinal_(ordinal) {
  const CudaDriver& cuda = *driver_;
  if (const auto result = cuda.init(0); result != cu::kSuccess) unavailable(result, "cuInit");
  int count = 0;
  if (const auto result = cuda.device_get_count(&count); result != cu::kSuccess) {
    unavailable(result, "cuDeviceGetCount");
  }
  if (ordinal < 0 || ordinal >= count) {
    throw UnavailableError("CUDA: GPU " + std::to_string(ordinal) + " does not exist: this process sees " +
                           std::to_string(count) + "; CUDA_VISIBLE_DEVICES may hide others");
  }
  if (const auto result = cuda.device_get(&device_, ordinal); result != cu::kSuccess) {
    unavailable(result, "cuDeviceGet");
  }
  std::array<char, 256> text = {};
  if (cuda.device_get_name(text.data(), static_cast<int>(text.size() - 1), device_) == cu::kSuccess) {
    name_ = text.data();
  }
  cu::Uuid uuid = {};
  if (const auto result = cuda.device_get_uuid(&uuid, device_); result != cu::kSuccess) {
    unavailable(result, "cuDeviceGetUuid");
  }
  static_assert(sizeof uuid.bytes == sizeof id_.uuid);
  std::memcpy(id_.uuid.data(), uuid.bytes, sizeof uuid.bytes);
  if (attribute(cu::kAttributeUnifiedAddressing) == 0) {
    throw UnavailableError("CUDA: " + where() + " has no unified addressing, which ringreduce needs");
  }
  multiprocessors_ = static_cast<unsigned>(std::max(attribute(cu::kAttributeMultiprocessorCount), 1));
  if (const auto result = cuda.device_primary_ctx_retain(&context_, device_); result != cu::kSuccess) {
    unavailable(result, "cuDevicePrimaryCtxRetain");
  }
}

CudaContext::~CudaContext() {
  if (!is_left()) RR_CUDA_FREE(*this, device_primary_ctx_release, device_);
}

std::string CudaContext::where() const {
  return "GPU " + std::to_string(ordinal_) + (name_.empty() ? "" : " (" + name_ + ")");
}

int CudaContext::attribute(unsigned which) const {
  int value = 0;
  const auto result = driver_->device_get_attribute(&value, static_cast<int>(which), device_);
  if (result != cu::kSuccess) unavailable(result, "cuDeviceGetAttribute");
  return value;
}

void CudaContext::reach(const DeviceId& other, const std::string& doing) const {
  const CudaDriver& cuda = *driver_;
  int count = 0;
  check(cuda.device_get_count(&count), cu::symbols::device_get_count, doing);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cu::DeviceOrdinal device = 0;
    check(cuda.device_get(&device, ordinal), cu::symbols::device_get, doing);
    cu::Uuid uuid = {};
    check(cuda.device_get_uuid(&uuid, device), cu::symbols::device_get_uuid, doing);
    if (std::memcmp(uuid.bytes, other.uuid.data(), sizeof uuid.bytes) != 0) continue;
    cu::Context context = nullptr;
    check(cuda.device_primary_ctx_retain(&context, device), cu::symbols::device_primary_ctx_retain, doing);
    const auto result = cuda.ctx_enable_peer_access(context, 0);
    check_freeing(cuda.device_primary_ctx_release(device), cu::symbols::device_primary_ctx_release);
    if (result != cu::kPeerAccessAlreadyEnabled) check(result, cu::symbols::ctx_enable_peer_access, doing);
    return;
  }
  throw InternalError("CUDA: " + where() + ": " + doing + ": this process does not see that GPU");
}

void CudaContext::unavailable(cu::Result result, const char* call) const {
  throw UnavailableError("CUDA: " + where() + ": " + call + ": " + driver_->text(result) + advice(result) +
                         " (driver for CUDA " + driver_->version() + ")");
}

void CudaContext::raise_if_broken() const {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) throw InternalError(broken_);
}

void CudaContext::check(cu::Result result, const char* call, const std::string& doing) const {
  if (result != cu::kSuccess) fail(result, call, doing);
}

void CudaContext::fail(cu::Result result, const char* call, const std::string& doing) const {
  const std::string text = "CUDA: " + where() + ": " + (doing.empty() ? "" : doing + ": ") + call + ": " +
                           driver_->text(result) + advice(result);
  if (is_sticky(result)) {
    const std::lock_guard lock(mutex_);
    if (broken_.empty()) broken_ = text;
    throw InternalError(broken_);
  }
  throw InternalError(text);
}

void CudaContext::check_freeing(cu::Result result, const char* call) const noexcept {
  if (result == cu::kSuccess || result == cu::kDeinitialized || result == cu::kNotInitialized) return;
  try {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_logged_, true) && is_sticky(result)) return;
    Log().warning("CUDA: " + where() + ": freeing: " + call + ": " + driver_->text(result));
  } catch (const std::exception&) {
    // Out of memory for the message: there is nobody left to tell.
  }
}

CudaContext::Current::Current(const CudaContext& context) : context_(context) {
  context_.raise_if_broken();
  context_.check(enter(), cu::symbols::ctx_push_current);
}

CudaContext::Current::Current(const CudaContext& context, Freeing) : context_(context) {
  context_.check_freeing(enter(), cu::symbols::ctx_push_current);
}

cu::Result CudaContext::Current::enter() {
  const CudaDriver& cuda = context_.driver();
  cu::Context before = nullptr;
  // A thread that keeps the context current is spared two calls.
  if (cuda.ctx_get_current(&before) != cu::kSuccess || before != context_.context_) {
    if (const auto result = cuda.ctx_push_current(context_.context_); result != cu::kSuccess) return result;
    is_pushed_ = true;
  }
  capture_mode_ = static_cast<int>(cu::kCaptureModeRelaxed);
  if (cuda.thread_exchange_capture_mode(&capture_mode_) != cu::kSuccess) {
    capture_mode_ = static_cast<int>(cu::kCaptureModeRelaxed);
  }
  return cu::kSuccess;
}

CudaContext::Current::~Current() {
  const CudaDriver& cuda = context_.driver();
  if (capture_mode_ != static_cast<int>(cu::kCaptureModeRelaxed)) cuda.thread_exchange_capture_mode(&capture_mode_);
  cu::Context popped = nullptr;
  if (is_pushed_) RR_CUDA_FREE(context_, ctx_pop_current, &popped);
}

}  // namespace rr
