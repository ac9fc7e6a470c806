// One submitted operation, from submit() until its result or error has been handed over.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "collective/gpu/ipc.h"
#include "gpu/pinned_arena.h"
#include "negotiation/negotiation.h"
#include "recorder/recorder.h"

namespace rr {

// Memory that an operation allocates for its result. Aligned to a cache line, as frameworks want their tensors.
struct FreeOutput {
  std::shared_ptr<Device> device;  // whose memory it is; null: host memory
  void operator()(std::byte* memory) const noexcept {
    if (device == nullptr) return ::operator delete[](memory, kAlignment);
    try {
      device->release(memory);
    } catch (const Error&) {
      return;  // a GPU whose context is broken has nothing left to give back
    }
  }
  static constexpr std::align_val_t kAlignment{64};
};
using Output = std::unique_ptr<std::byte[], FreeOutput>;
inline Output new_output(size_t nbytes) {
  return Output(static_cast<std::byte*>(::operator new[](nbytes, FreeOutput::kAlignment)));
}
inline Output new_output(std::shared_ptr<Device> device, size_t nbytes) {
  std::byte* const memory = device->allocate(nbytes);
  return Output(memory, FreeOutput{std::move(device)});
}
// With the executor lock held.
inline Output new_output_locked(std::shared_ptr<Device> device, size_t nbytes) {
  std::byte* const memory = device->allocate_locked(nbytes);
  return Output(memory, FreeOutput{std::move(device)});
}

// A C-contiguous tensor of this process, in host memory or on its GPU.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kUInt8;
  Place place = Place::kHost;
  uint8_t ndim = 0;
  uint64_t dims[kDims] = {};  // like Signature::dims
  size_t count = 0;           // elements

  size_t nbytes() const { return count * itemsize(dtype); }
  uint64_t rows() const { return ndim == 0 ? 1 : dims[0]; }
  size_t row_nbytes() const { return rows() == 0 ? row_when_empty : nbytes() / rows(); }
  size_t row_when_empty = 0;  // bytes of a row when there are no rows

  // dim(i): the extent of dimension i. The dtype has been set.
  template <class Dim>
  void set_shape(size_t dimensions, const Dim& dim) {
    ndim = static_cast<uint8_t>(dimensions);
    count = 1;
    row_when_empty = itemsize(dtype);
    for (size_t i = 0; i < dimensions; ++i) {
      const uint64_t extent = dim(i);
      uint64_t& shown = dims[std::min(i, kDims - 1)];
      shown = i < kDims ? extent : mix(shown, extent);
      count *= static_cast<size_t>(extent);
      if (i != 0) row_when_empty *= static_cast<size_t>(extent);
    }
  }
};

struct Request {
  Kind kind = Kind::kBarrier;
  std::vector<TensorView> srcs;
  std::vector<TensorView> dsts;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  Codec codec = Codec::kNone;    // all-reduce: how elements travel between hosts
  int root = -1;                 // group rank
  std::vector<uint64_t> splits;  // alltoall: rows for each rank; empty = equal parts
  // allgather, alltoall, gather at the root: the rows from each rank that the output has room for. Others are an error
  // of this rank alone, which does its part all the same. Empty: whatever comes.
  std::vector<uint64_t> expected;
  const std::string* name = nullptr;
  bool is_async = false;
  bool is_from_queue = false;  // submitted by the queue's thread for a caller of its own (device_queue.h)
  std::shared_ptr<void> keep;  // whatever owns the tensors
};

constexpr int kAnyPeer = -2;

enum class State : uint32_t { kPending, kDone, kFailed };

struct Operation {
  Kind kind = Kind::kBarrier;
  Signature signature;
  std::vector<TensorView> srcs;
  std::vector<TensorView> dsts;
  std::vector<uint64_t> splits;
  std::vector<uint64_t> expected;  // as in Request
  std::string name;                // "" = unnamed
  uint64_t number = 0;             // of this rank's operations in the group, from 0
  std::atomic<int> peer{-1};       // of a message
  Ticket ticket;
  bool quick = false;    // finished from the request slots, never in the log
  bool discard = false;  // its caller was interrupted: its memory is left alone
  int64_t submitted_ns = 0;
  RecordedCall recorded;
  std::atomic<bool> warned{false};
  std::atomic<bool> settled{false};  // how it ends is decided: it is in the log, or refused
  std::atomic<bool> wanted{false};   // somebody waits for it or polls it
  std::atomic<State> state{State::kPending};
  std::exception_ptr error;  // set before state becomes kFailed

  // Results that the operation allocates itself.
  Output output;
  size_t output_nbytes = 0;
  std::vector<uint64_t> counts;  // first dimensions by rank

  bool is_issued = false;  // the GPU has been told to do it; the executor's

  // On a GPU: inputs and outputs, if other processes could map them.
  std::vector<DeviceOperand> operands;
  DeviceExports exports;         // of the operands, until the operation has ended
  PinnedArena* arena = nullptr;  // of a host copy, whose output comes from there

  std::shared_ptr<void> keep;
};

using OperationPtr = std::shared_ptr<Operation>;

// "allreduce 'loss'"; "allreduce" without a name
inline std::string called(Kind kind, const std::string* name) {
  return rr::name(kind) + (name == nullptr || name->empty() ? "" : " '" + *name + "'");
}
// "allreduce 'loss' #12"
inline std::string called(Kind kind, const std::string& name, uint64_t number) {
  return called(kind, &name) + " #" + std::to_string(number);
}
inline std::string called(const Operation& operation) {
  if (operation.peer == -1) return called(operation.kind, operation.name, operation.number);
  return operation.name + " #" + std::to_string(operation.number);  // a message, whose name says it all
}

}  // namespace rr
