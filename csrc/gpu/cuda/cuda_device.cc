#include "gpu/cuda/cuda_device.h"

#include <chrono>

#include "base/config.h"
#include "base/log.h"
#include "base/poll.h"
#include "gpu/cuda/launch/image.h"

namespace rr {
namespace {

cu::Stream stream_of(Stream stream) { return static_cast<cu::Stream>(stream); }

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<const CudaDriver> driver, int ordinal, const void* image)
    : context_(std::move(driver), ordinal),
      starting_(std::in_place, context_),
      points_(context_),
      memory_(context_),
      work_streams_(context_),
      kernels_(context_, work_streams_, image),
      exports_(context_),
      imports_(context_) {
  starting_.reset();
}

CudaDevice::~CudaDevice() {
  if (is_left()) return;
  const auto current = context_.current_for_freeing();
  if (!becomes_idle()) leave();
}

void CudaDevice::leave() {
  if (is_left()) return;
  Log().warning("CUDA: " + context_.where() + ": work of ours has not ended; its memory is left to the process's end");
  Device::leave();  // first: who frees pages looks at it after the context has let them go
  context_.leave();
}

bool CudaDevice::becomes_idle() {
  try {
    return poll_until([&] { return work_streams_.passes_all(); }, Deadline::after_s(1), std::chrono::microseconds(100));
  } catch (const Error&) {
    return true;  // nothing runs in a context that is lost, and what has to be said has been said
  }
}

std::unique_ptr<StreamPoint> CudaDevice::record(Stream stream) {
  const Current current(context_);
  return points_.record(stream_of(stream));
}

bool CudaDevice::is_capturing(Stream stream) {
  const Current current(context_);
  int status = 0;
  const auto result = context_.driver().stream_is_capturing(stream_of(stream), &status);
  // The default stream, beside a capture with which it would synchronize.
  if (result == cu::kStreamCaptureImplicit) return true;
  context_.check(result, cu::symbols::stream_is_capturing, "");
  return status != static_cast<int>(cu::kCaptureStatusNone);
}

void CudaDevice::pin(std::byte* data, size_t nbytes) {
  const Current current(context_);
  memory_.pin(data, nbytes);
}

void CudaDevice::unpin(std::byte* data) {
  const auto current = context_.current_for_freeing();
  memory_.unpin(data);
}

// What this process has mapped of peers on this GPU keeps what they have freed. A thread may just have closed it.
std::byte* CudaDevice::allocate(size_t nbytes) {
  const Current current(context_);
  const uint64_t closed = imports_.closed();
  try {
    return memory_.allocate(nbytes);
  } catch (const Error&) {
    imports_.close_forgotten();
    if (imports_.closed() == closed) throw;
  }
  return memory_.allocate(nbytes);
}

std::byte* CudaDevice::allocate_locked(size_t nbytes) {
  if (!waits_for_peers()) return allocate(nbytes);
  const Current current(context_);
  return memory_.allocate_at_once(nbytes);
}

void CudaDevice::free_released() {
  const bool must_wait = waits_for_peers();
  is_freeing_due_.store(must_wait);
  if (must_wait) return;
  const auto current = context_.current_for_freeing();
  memory_.free_released();
  imports_.close_forgotten();
}

DeviceExport CudaDevice::exported(const std::byte* data, size_t nbytes, uint64_t& offset, std::shared_ptr<void>& keep) {
  const Current current(context_);
  return exports_.exported(data, nbytes, offset, keep);
}

std::byte* CudaDevice::imported(const DeviceExport& peer) {
  const Current current(context_);
  return imports_.imported(peer, !waits_for_peers());
}

void CudaDevice::forget(uint64_t uid) { imports_.forget(uid); }

void CudaDevice::copy(WorkStream work_stream, std::byte* dst, const std::byte* src, size_t nbytes) {
  if (nbytes == 0) return;
  const Current current(context_);
  RR_CUDA(context_, memcpy_async, device_ptr(dst), device_ptr(src), nbytes, work_streams_.stream(work_stream));
}

void CudaDevice::move(WorkStream work_stream, const std::vector<DevicePart>& parts, DType from, DType to,
                      double factor) {
  const Current current(context_);
  kernels_.launch(work_stream, move_launch(parts, from, to, factor, context_.multiprocessors()));
}

void CudaDevice::fold(WorkStream work_stream, const std::vector<DeviceFold>& folds, const Reduction& reduction) {
  const Current current(context_);
  kernels_.launch(work_stream, fold_launch(folds, reduction, context_.multiprocessors()));
}

void CudaDevice::encode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) {
  const Current current(context_);
  kernels_.launch(work_stream, encode_launch(codec, src, dst, count, context_.multiprocessors()));
}

void CudaDevice::decode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) {
  const Current current(context_);
  kernels_.launch(work_stream, decode_launch(codec, src, dst, count, context_.multiprocessors()));
}

WorkStream CudaDevice::add_work_stream() {
  const Current current(context_);
  return work_streams_.add();
}

Mark CudaDevice::mark(WorkStream work_stream) {
  const Current current(context_);
  return work_streams_.mark(work_stream);
}

void CudaDevice::follow(WorkStream work_stream, const Mark& mark) {
  const Current current(context_);
  work_streams_.follow(work_stream, mark);
}

bool CudaDevice::passed(const Mark& mark) {
  const Current current(context_);
  return work_streams_.passed(mark);
}

std::shared_ptr<Device> cuda_device(int ordinal) {
  const std::string library = Settings::from_environment().cuda_library;
  const void* image = kernel_image();
  const auto no_kernels = [&] {
    return UnavailableError("GPU " + std::to_string(ordinal) +
                            ": this build of ringreduce has no CUDA kernels; build it " + "where nvcc is in PATH");
  };
  if (image == nullptr && library == kCudaLibrary) throw no_kernels();
  auto driver = CudaDriver::open(library);
  static constexpr char kNone[1] = {};
  if (image == nullptr && driver->needs_image()) throw no_kernels();
  return std::make_shared<CudaDevice>(std::move(driver), ordinal, image != nullptr ? image : kNone);
}

}  // namespace rr
