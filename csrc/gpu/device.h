// The seam to an accelerator: what the queue and the algorithms need of one GPU, and nothing that is CUDA's own.
//
// Work is issued to work streams, each of which runs in order, beside the others and beside the caller's streams;
// whoever issued it asks by a mark whether it is done. Nothing here waits for the device. Every call may throw
// HorovodInternalError with the driver's words; after a sticky error all do.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "data/reduction.h"

namespace rr {

enum class Place : uint8_t { kHost, kDevice };

enum class WorkStream : uint32_t { kToHost, kToDevice, kCompute };  // and those of add_work_stream()
inline constexpr size_t kWorkStreams = 3;                           // that are always there

// What has been issued to a work stream up to some moment.
struct Mark {
  WorkStream work_stream = WorkStream::kCompute;
  uint64_t number = 0;
};

// A stream of the caller, as frameworks hand it over: a CUstream; null and 1 are the default streams as in CUDA.
using Stream = void*;

// What had been put on a caller's stream at some moment. Any thread, one at a time.
class StreamPoint {
 public:
  StreamPoint() = default;
  virtual ~StreamPoint() = default;
  StreamPoint(const StreamPoint&) = delete;
  StreamPoint& operator=(const StreamPoint&) = delete;
  virtual bool passed() = 0;  // whether the stream has done all of it; does not wait
};

struct DeviceId {
  std::array<uint8_t, 16> uuid{};
  bool operator==(const DeviceId& other) const { return uuid == other.uuid; }
};

// An allocation, for a peer on the same host to map. Plain data: it travels through shared memory.
struct DeviceExport {
  uint64_t uid = 0;     // of the allocation, never the same again in this job; 0: it cannot be mapped by others
  uint64_t nbytes = 0;  // from the allocation's beginning to its end
  DeviceId device;
  int32_t pid = 0;  // owner
  int32_t fd = -1;  // the owner's descriptor of it; -1: `handle` is a CUDA IPC handle
  std::array<uint8_t, 64> handle{};
  uint64_t process = 0;  // a number that is the owner's alone, also beside processes of other pid namespaces
  uint64_t base = 0;     // where it begins in the owner's process
};

// Part of a list that one launch works through. Either side may be pinned host memory.
struct DevicePart {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  size_t count = 0;  // elements
};

// dsts[d][i] = what Kernels::reduce of srcs[.][i] gives, bit for bit. A dst may be one of the srcs.
struct DeviceFold {
  std::vector<const std::byte*> srcs;  // in rank order
  std::vector<std::byte*> dsts;
  size_t count = 0;  // elements
};

// Not now, or not for this operation: the same one later, or another one, may have what this one is refused.
class DeviceBusyError : public InternalError {
 public:
  using InternalError::InternalError;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual int ordinal() const = 0;
  virtual DeviceId id() const = 0;
  virtual std::string name() const = 0;

  // --- the caller's streams; from any thread
  // No stream of theirs ever waits for this process's host: a driver may block every other call meanwhile.
  // All that has been put on the stream so far. The point does not outlive the device.
  virtual std::unique_ptr<StreamPoint> record(Stream stream) = 0;
  virtual bool is_capturing(Stream stream) = 0;

  // --- memory; from any thread
  // Host memory that work streams copy from and to without going through the driver's own buffers. Pages; until unpin
  // or end.
  virtual void pin(std::byte* data, size_t nbytes) = 0;
  virtual void unpin(std::byte* data) = 0;
  virtual std::byte* allocate(size_t nbytes) = 0;  // device memory, 256-byte aligned
  // The same under a lock that somebody needs who ends work that waits for peers: while there is such work nothing is
  // freed to make room, since that waits until the GPU is idle. Throws DeviceBusyError where that would help.
  virtual std::byte* allocate_locked(size_t nbytes) { return allocate(nbytes); }
  // Kernels of callers, on streams that are not known here, may still read what is released. So nobody gets it before
  // free_released(), which waits until the GPU is idle: it is called without locks, but by allocate() on a full GPU.
  virtual void release(std::byte* data) = 0;
  // Also closes the mappings that have been forgotten. While work waits for peers it does nothing, and is due later:
  // the driver lets nothing begin until the GPU is idle (H200, driver 580), also not what a peer waits for.
  virtual void free_released() = 0;
  bool is_freeing_due() const { return is_freeing_due_.load(); }
  virtual size_t released_nbytes() = 0;
  // The allocation that an operand lies in; offset: where in it. Others can map it as long as `keep` lives.
  virtual DeviceExport exported(const std::byte* data, size_t nbytes, uint64_t& offset,
                                std::shared_ptr<void>& keep) = 0;
  // Where the allocation of a peer begins in this process; the own ones too. Mapped once and kept until `forget`.
  // Throws where kImports are mapped already: which of them is not in use is not known here. Called under a lock, as
  // allocate_locked().
  static constexpr size_t kImports = 4096;
  virtual std::byte* imported(const DeviceExport& peer) = 0;
  // The mapping of a peer's allocation; nothing in a work stream uses it any more. It keeps the memory until
  // free_released().
  virtual void forget(uint64_t uid) = 0;
  virtual size_t forgotten() = 0;  // mappings

  // --- work streams; one thread at a time
  // One more, for work that waits for peers. Two groups' in one work stream could wait for each other for ever: what is
  // first on one rank may be second on another.
  virtual WorkStream add_work_stream() = 0;
  // Such work begins, and has ended. Any thread.
  void begin_waiting_for_peers() { waiting_for_peers_.fetch_add(1); }
  void end_waiting_for_peers() { waiting_for_peers_.fetch_sub(1); }
  bool waits_for_peers() const { return waiting_for_peers_.load() != 0; }
  // What is in it ends by itself; whoever adds one may be given it again.
  virtual void remove_work_stream(WorkStream work_stream) = 0;
  virtual size_t work_streams() const = 0;  // that have ever been there
  virtual void copy(WorkStream work_stream, std::byte* dst, const std::byte* src, size_t nbytes) = 0;
  // dst = factor * src, rounded once to `to`: pack, unpack, scale and cast, all parts in one launch.
  virtual void move(WorkStream work_stream, const std::vector<DevicePart>& parts, DType from, DType to,
                    double factor) = 0;
  virtual void fold(WorkStream work_stream, const std::vector<DeviceFold>& folds, const Reduction& reduction) = 0;
  // float32 to codec_nbytes(codec, count) bytes and back, bit for bit as Kernels::encode and decode.
  virtual void encode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) = 0;
  virtual void decode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) = 0;
  virtual Mark mark(WorkStream work_stream) = 0;
  // Further work of the work stream begins after the mark.
  virtual void follow(WorkStream work_stream, const Mark& mark) = 0;
  virtual bool passed(const Mark& mark) = 0;
  virtual bool is_busy() const = 0;  // whether a mark has been made that has not been seen passed
  virtual Stream stream(WorkStream work_stream) const = 0;  // for libraries that issue their own work
  // As long as what it returns lives, the GPU is the calling thread's current one: what such libraries expect.
  virtual std::shared_ptr<void> make_current() { return nullptr; }

  // --- the end; from any thread
  // The GPU is at work that does not end. From now on nothing is given back, because the driver would wait for it:
  // unpin() and free_released() do nothing. What is pinned stays so, and its pages must not become anybody else's.
  virtual void leave() { is_left_.store(true); }
  bool is_left() const { return is_left_.load(); }

 protected:
  std::atomic<bool> is_freeing_due_{false};

 private:
  std::atomic<int> waiting_for_peers_{0};  // operations
  std::atomic<bool> is_left_{false};
};

// Whether this build has kernels (csrc/gpu/no_cuda.cc is the twin that has none), and for what.
bool cuda_built();
// The GPU of that ordinal, in the primary context that the CUDA runtime and torch use.
// Throws UnavailableError: no kernels in this build, no driver, no such device.
std::shared_ptr<Device> cuda_device(int ordinal);

}  // namespace rr
