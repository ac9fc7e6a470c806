// What tests of CudaDevice share: waiting for the fake driver, memory, numbers in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "expect.h"
#include "fake_cuda.h"
#include "host_memory.h"

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

struct Reached {
  std::atomic<int> times{0};
  static void call(void* self) { static_cast<Reached*>(self)->times.fetch_add(1, std::memory_order_release); }
};

inline void write_word(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

}  // namespace rr::test
