// Device memory of other processes on this host, mapped here: as often as there are allocations, not operands.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "gpu/cuda/cuda_context.h"

namespace rr {

// From any thread, with the context current.
class CudaImports {
 public:
  explicit CudaImports(const CudaContext& context, size_t capacity = Device::kImports)
      : context_(context), capacity_(capacity) {}
  ~CudaImports();
  CudaImports(const CudaImports&) = delete;
  CudaImports& operator=(const CudaImports&) = delete;

  // may_wait: until the GPU is idle, for what is in the way to be closed. Else that is an error.
  std::byte* imported(const DeviceExport& peer, bool may_wait = true);
  // Closing a mapping waits until the GPU is idle (seen on an H200), so it is a step of its own.
  void forget(uint64_t uid);
  size_t forgotten();
  void close_forgotten();
  uint64_t closed();  // so far
  size_t size();

 private:
  struct Mapped {
    uint64_t uid = 0;
    cu::DevicePtr base = 0;
    size_t nbytes = 0;
    enum class Kind { kOwn, kHandle, kPieces } kind = Kind::kOwn;
    uint64_t process = 0;  // the owner, and where the allocation begins there
    uint64_t owner_base = 0;
    bool is_closing = false;
  };
  std::optional<Mapped> map(const DeviceExport& peer);
  Mapped map_own(const DeviceExport& peer);
  std::optional<Mapped> map_handle(const DeviceExport& peer);
  Mapped map_pieces(const DeviceExport& peer);
  bool revive(uint64_t uid);
  void forget_stale(const DeviceExport& peer);
  void drop(std::map<uint64_t, Mapped>::iterator which);
  void close(const Mapped& mapped) const;

  const CudaContext& context_;
  const size_t capacity_;
  std::mutex mutex_;
  std::map<uint64_t, Mapped> mapped_;  // by uid
  std::deque<Mapped> forgotten_;
  std::mutex closing_;  // locked before mutex_
  uint64_t closed_ = 0;
};

}  // namespace rr
