// What tests of CudaDevice share: waiting for the fake driver, memory, numbers in it.
#pragma once

#include <cstdint>
#include <vector>

#include "fakes/fake_cuda.h"
#include "host_memory.h"
#include "support/expect.h"

namespace rr::test {

inline void finish(Device& device, WorkStream work_stream) {
  const Mark mark = device.mark(work_stream);
  wait_for([&] { return device.passed(mark); });
}

inline float value(size_t rank, size_t i) { return static_cast<float>(rank + 1) * 0.25F + static_cast<float>(i % 97); }

inline std::vector<float> values(size_t rank, size_t count) {
  std::vector<float> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = value(rank, i);
  return all;
}

// A stream of the caller's that is at work until let_go().
class HeldStream {
 public:
  HeldStream(FakeCuda& fake, Device& device, cu::Stream stream) : word_(device, 4096) {
    FakeCuda::check(fake.cuStreamWaitValue32_v2(stream, device_ptr(word_.data()), 1, 0), "cuStreamWaitValue32");
  }
  ~HeldStream() { let_go(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void let_go() { __atomic_store_n(word_.as<uint32_t>(), 1, __ATOMIC_RELEASE); }

 private:
  HostMemory word_;
};

}  // namespace rr::test
