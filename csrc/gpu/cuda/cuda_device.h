// A GPU by the CUDA driver: what device.h asks for, put together from its parts.
#pragma once

#include <memory>
#include <optional>

#include "gpu/cuda/cuda_exports.h"
#include "gpu/cuda/cuda_imports.h"
#include "gpu/cuda/cuda_memory.h"
#include "gpu/cuda/cuda_stream_points.h"
#include "gpu/cuda/cuda_work_streams.h"
#include "gpu/cuda/launch/cuda_kernels.h"

namespace rr {

class CudaDevice final : public Device {
 public:
  // image: kernel_image(); for a driver that needs none, whatever.
  CudaDevice(std::shared_ptr<const CudaDriver> driver, int ordinal, const void* image);
  // What the GPU cannot be rid of within a second stays until the process ends.
  ~CudaDevice() override;

  int ordinal() const override { return context_.ordinal(); }
  DeviceId id() const override { return context_.id(); }
  std::string name() const override { return context_.name(); }

  std::unique_ptr<StreamPoint> record(Stream stream) override;
  bool is_capturing(Stream stream) override;

  void pin(std::byte* data, size_t nbytes) override;
  void unpin(std::byte* data) override;
  std::byte* allocate(size_t nbytes) override;
  std::byte* allocate_locked(size_t nbytes) override;
  void release(std::byte* data) override { memory_.release(data); }
  void free_released() override;
  size_t released_nbytes() override { return memory_.released_nbytes(); }
  DeviceExport exported(const std::byte* data, size_t nbytes, uint64_t& offset, std::shared_ptr<void>& keep) override;
  std::byte* imported(const DeviceExport& peer) override;
  void forget(uint64_t uid) override;
  size_t forgotten() override { return imports_.forgotten(); }

  WorkStream add_work_stream() override;
  void remove_work_stream(WorkStream work_stream) override { work_streams_.remove(work_stream); }
  size_t work_streams() const override { return work_streams_.count(); }
  void copy(WorkStream work_stream, std::byte* dst, const std::byte* src, size_t nbytes) override;
  void move(WorkStream work_stream, const std::vector<DevicePart>& parts, DType from, DType to, double factor) override;
  void fold(WorkStream work_stream, const std::vector<DeviceFold>& folds, const Reduction& reduction) override;
  void encode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) override;
  void decode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) override;
  Mark mark(WorkStream work_stream) override;
  void follow(WorkStream work_stream, const Mark& mark) override;
  bool passed(const Mark& mark) override;
  bool is_busy() const override { return work_streams_.is_busy(); }
  Stream stream(WorkStream work_stream) const override { return work_streams_.stream(work_stream); }
  std::shared_ptr<void> make_current() override { return std::make_shared<Current>(context_); }

  void leave() override;

 private:
  using Current = CudaContext::Current;
  bool becomes_idle();

  CudaContext context_;
  std::optional<Current> starting_;  // while the parts below are made
  CudaStreamPoints points_;
  CudaMemory memory_;
  CudaWorkStreams work_streams_;
  CudaKernels kernels_;
  CudaExports exports_;
  CudaImports imports_;
};

}  // namespace rr
