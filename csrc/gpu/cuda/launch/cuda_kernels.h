// Our kernels on a GPU: found at the start, launched with their tables.
//
// A table that does not fit into a launch's parameters goes through pinned memory to the device, in a slot that is used
// again when all launches with it have ended. A list of tensors that comes again, as in training, finds its table
// there.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "gpu/cuda/cuda_work_streams.h"
#include "gpu/cuda/launch/tables.h"

namespace rr {

// One thread at a time, with the context current.
class CudaKernels {
 public:
  // image: kernel_image(). Throws InternalError when the driver cannot use it on this GPU.
  CudaKernels(const CudaContext& context, CudaWorkStreams& work_streams, const void* image);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  void launch(WorkStream work_stream, const Launch& launch);
  size_t slots() const { return slots_.size(); }

 private:
  struct Slot {
    std::byte* host = nullptr;
    cu::DevicePtr device = 0;
    size_t capacity = 0;
    size_t nbytes = 0;       // of the table that is in it; 0: none
    Mark uploaded;           // when it is on the device
    std::vector<Mark> used;  // by which the launches with it have ended, one a work stream
    uint64_t touched = 0;
  };
  Slot& slot_with(WorkStream work_stream, const std::vector<std::byte>& table);
  bool is_free(const Slot& slot);
  static void use(Slot& slot, const Mark& mark);
  void add_slots(size_t count, size_t nbytes);
  void destroy() noexcept;

  const CudaContext& context_;
  CudaWorkStreams& work_streams_;
  cu::Module module_ = nullptr;
  std::map<std::string_view, cu::Function> functions_;
  struct Arena {
    void* host = nullptr;
    cu::DevicePtr device = 0;
  };
  std::vector<Arena> arenas_;  // what the slots lie in
  std::vector<Slot> slots_;
  uint64_t clock_ = 0;
};

}  // namespace rr
