// A GPU as this process sees it: the driver, the primary context (that of the CUDA runtime and of torch), and what went
// wrong in it for good. Everything of CudaDevice calls the driver through this.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "gpu/cuda/driver.h"
#include "gpu/device.h"

namespace rr {

class CudaContext {
 public:
  // Throws UnavailableError: the driver does not start, there is no such device.
  CudaContext(std::shared_ptr<const CudaDriver> driver, int ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  int ordinal() const { return ordinal_; }
  cu::DeviceOrdinal device() const { return device_; }
  const DeviceId& id() const { return id_; }
  const std::string& name() const { return name_; }
  std::string where() const;  // "GPU 0 (NVIDIA H200)"
  unsigned multiprocessors() const { return multiprocessors_; }
  int attribute(unsigned which) const;

  // Lets kernels of this GPU reach what cuMemAlloc gave on another GPU of this process. Throws InternalError.
  void reach(const DeviceId& other, const std::string& doing) const;

  // Throws InternalError unless result is success: the call, the GPU, the driver's words, what to do. A sticky error is
  // remembered: from then on every check and every Current repeats it.
  void check(cu::Result result, const char* call, const std::string& doing = "") const;
  // For what frees: never throws; what goes wrong is logged, once for a context that is broken. A driver that has
  // ended, as it may at the end of the process and does in forked children, is no error.
  void check_freeing(cu::Result result, const char* call) const noexcept;
  [[noreturn]] void fail(cu::Result result, const char* call, const std::string& doing) const;

  // From now on nothing is freed: the GPU is at work that may never end, and the driver would wait for it.
  void leave() { is_left_.store(true); }
  bool is_left() const { return is_left_.load(); }

  // The context is current in this thread while this lives, and calls are allowed that CUDA otherwise forbids while any
  // thread captures a graph: ours have nothing to do with what is captured. Throws the remembered error if there is
  // one.
  class Current {
   public:
    explicit Current(const CudaContext& context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    friend class CudaContext;
    enum class Freeing { kYes };
    Current(const CudaContext& context, Freeing);
    cu::Result enter();
    const CudaContext& context_;
    bool is_pushed_ = false;
    int capture_mode_ = static_cast<int>(cu::kCaptureModeRelaxed);
  };
  // For what frees: whatever happened before, and no error if the driver is gone.
  Current current_for_freeing() const { return Current(*this, Current::Freeing::kYes); }

 private:
  void raise_if_broken() const;
  [[noreturn]] void unavailable(cu::Result result, const char* call) const;

  std::shared_ptr<const CudaDriver> driver_;
  const int ordinal_;
  cu::DeviceOrdinal device_ = 0;
  cu::Context context_ = nullptr;
  DeviceId id_;
  std::string name_;
  unsigned multiprocessors_ = 0;
  mutable std::mutex mutex_;
  mutable std::string broken_;  // the first sticky error
  mutable bool has_logged_ = false;
  std::atomic<bool> is_left_{false};
};

// Calls a function of the driver and checks what it says: RR_CUDA(context, mem_free, pointer).
#define RR_CUDA(context, member, ...) (context).check((context).driver().member(__VA_ARGS__), ::rr::cu::symbols::member)
#define RR_CUDA_FREE(context, member, ...) \
  (context).check_freeing((context).driver().member(__VA_ARGS__), ::rr::cu::symbols::member)

}  // namespace rr
