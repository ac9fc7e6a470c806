// The CUDA driver of tests/fake_cuda/ for C++ tests: what a program calls that has streams, memory and graphs of its
// own, and the fake's own switches.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/never_destroyed.h"
#include "fakes/fake_library.h"
#include "gpu/cuda/cuda_device.h"

namespace rr::test {

// X(name, signature without the result)
#define RR_FAKE_CUDA_CALLS(X)                                                              \
  X(cuStreamSynchronize, cu::Stream)                                                       \
  X(cuStreamBeginCapture_v2, cu::Stream, int)                                              \
  X(cuStreamEndCapture, cu::Stream, void**)                                                \
  X(cuGraphLaunch, void*, cu::Stream)                                                      \
  X(cuCtxSetCurrent, cu::Context)                                                          \
  X(cuMemAllocAsync, cu::DevicePtr*, size_t, cu::Stream)                                   \
  X(cuMemFreeAsync, cu::DevicePtr, cu::Stream)                                             \
  X(cuMemCreate, cu::MemHandle*, size_t, const cu::MemAllocationProp*, unsigned long long) \
  X(cuMemsetD8Async, cu::DevicePtr, unsigned char, size_t, cu::Stream)                     \
  X(cuStreamWaitValue32_v2, cu::Stream, cu::DevicePtr, uint32_t, unsigned)                 \
  X(fake_cuda_delay, cu::Stream, unsigned)

class FakeCuda {
 public:
  FakeCuda()
      : driver(CudaDriver::open(fake_cuda_library())), library_(::dlopen(fake_cuda_library().c_str(), RTLD_NOW)) {
#define RR_FIND(name, ...) find(#name, name);
    RR_FAKE_CUDA_CALLS(RR_FIND)
#undef RR_FIND
    find("fake_cuda_fail", fail);
    find("fake_cuda_reset", reset);
    find("fake_cuda_calls", calls);
    check(driver->init(0), "cuInit");
    reset();
  }
  // Of the process: the library reads its options once.
  static FakeCuda& get() {
    static auto& fake = []() -> FakeCuda& {
      ::setenv("FAKE_CUDA_DEVICES", "2", 1);
      return never_destroyed<FakeCuda>();
    }();
    fake.reset();
    return fake;
  }

  static void check(cu::Result result, const char* call) {
    if (result != cu::kSuccess) throw std::runtime_error(std::string(call) + ": " + std::to_string(result));
  }

  std::shared_ptr<CudaDevice> device(int ordinal = 0) const {
    static constexpr char kImage[1] = {};
    return std::make_shared<CudaDevice>(driver, ordinal, kImage);
  }

  std::shared_ptr<const CudaDriver> driver;
#define RR_MEMBER(name, ...) cu::Result (*name)(__VA_ARGS__) = nullptr;
  RR_FAKE_CUDA_CALLS(RR_MEMBER)
#undef RR_MEMBER
  void (*fail)(const char*) = nullptr;
  void (*reset)() = nullptr;
  uint64_t (*calls)(const char*) = nullptr;

 private:
  template <class Call>
  void find(const char* name, Call*& call) {
    call = reinterpret_cast<Call*>(::dlsym(library_, name));
    if (call == nullptr) throw std::runtime_error(std::string("no ") + name);
  }
  void* library_;
};

// A program with a context of its own that is current, as torch has it.
class Program {
 public:
  explicit Program(FakeCuda& fake, int ordinal = 0) : fake_(fake) {
    FakeCuda::check(fake.driver->device_primary_ctx_retain(&context_, ordinal), "cuDevicePrimaryCtxRetain");
    FakeCuda::check(fake.driver->ctx_push_current(context_), "cuCtxPushCurrent");
  }
  ~Program() {
    for (const cu::Stream stream : streams_) fake_.driver->stream_destroy(stream);
    fake_.driver->ctx_pop_current(&context_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  cu::Context context() const { return context_; }
  cu::Stream stream() {
    streams_.emplace_back();
    FakeCuda::check(fake_.driver->stream_create_with_priority(&streams_.back(), cu::kStreamNonBlocking, 0),
                    "cuStreamCreate");
    return streams_.back();
  }
  cu::DevicePtr allocate(size_t nbytes) {
    cu::DevicePtr at = 0;
    FakeCuda::check(fake_.driver->mem_alloc(&at, nbytes), "cuMemAlloc");
    return at;
  }
  void synchronize(cu::Stream stream) { FakeCuda::check(fake_.cuStreamSynchronize(stream), "cuStreamSynchronize"); }

 private:
  FakeCuda& fake_;
  cu::Context context_ = nullptr;
  std::vector<cu::Stream> streams_;
};

// Memory mapped piece by piece, as torch's expandable segments are. Unmapped at the end.
class Pieces {
 public:
  Pieces(FakeCuda& fake, size_t count, bool is_exportable = true, int ordinal = 0);
  ~Pieces();
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;
  cu::DevicePtr base() const { return base_; }
  static constexpr size_t kPiece = size_t{2} << 20;

 private:
  FakeCuda& fake_;
  cu::DevicePtr base_ = 0;
  size_t nbytes_;
};

inline Pieces::Pieces(FakeCuda& fake, size_t count, bool is_exportable, int ordinal)
    : fake_(fake), nbytes_(count * kPiece) {
  FakeCuda::check(fake.driver->mem_address_reserve(&base_, nbytes_, 0, 0, 0), "cuMemAddressReserve");
  cu::MemAllocationProp prop = {};
  prop.type = static_cast<int>(cu::kAllocationTypePinned);
  prop.requested_handle_types = is_exportable ? static_cast<int>(cu::kHandleTypePosixFd) : 0;
  prop.location = {static_cast<int>(cu::kLocationTypeDevice), ordinal};
  for (size_t i = 0; i < count; ++i) {
    cu::MemHandle handle = 0;
    FakeCuda::check(fake.cuMemCreate(&handle, kPiece, &prop, 0), "cuMemCreate");
    FakeCuda::check(fake.driver->mem_map(base_ + i * kPiece, kPiece, 0, handle, 0), "cuMemMap");
    FakeCuda::check(fake.driver->mem_release(handle), "cuMemRelease");
  }
  const cu::MemAccessDesc access = {prop.location, static_cast<int>(cu::kAccessReadWrite)};
  FakeCuda::check(fake.driver->mem_set_access(base_, nbytes_, &access, 1), "cuMemSetAccess");
}

inline Pieces::~Pieces() {
  fake_.driver->mem_unmap(base_, nbytes_);
  fake_.driver->mem_address_free(base_, nbytes_);
}

}  // namespace rr::test
