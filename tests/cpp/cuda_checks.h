// What tests of CudaDevice share: waiting for the fake driver, memory, numbers in it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "base/clock.h"
#include "fake_cuda.h"

namespace rr::test {

// No wait of ours is for time: this is when a test gives up.
template <class Condition>
void until(Condition&& condition) {
  const Deadline deadline = Deadline::after_s(60);
  while (!condition()) {
    if (deadline.passed()) throw std::runtime_error("nothing has happened for 60 s");
    ::usleep(50);
  }
}

inline void finish(Device& device, Lane lane) {
  const Mark mark = device.mark(lane);
  until([&] { return device.passed(mark); });
}

inline float value(size_t rank, size_t i) { return static_cast<float>(rank + 1) * 0.25F + static_cast<float>(i % 97); }

inline std::vector<float> values(size_t rank, size_t count) {
  std::vector<float> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = value(rank, i);
  return all;
}

// Host memory that nobody has pinned.
inline std::byte* pages(size_t nbytes) {
  void* at = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::runtime_error("mmap");
  return static_cast<std::byte*>(at);
}

// Host memory of whole pages that a lane may use.
class Pinned {
 public:
  Pinned(Device& device, size_t nbytes) : device_(device), nbytes_(nbytes), data_(pages(nbytes)) {
    device_.pin(data_, nbytes_);
  }
  ~Pinned() {
    device_.unpin(data_);
    ::munmap(data_, nbytes_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  Device& device_;
  size_t nbytes_;
  std::byte* data_;
};

struct Reached {
  std::atomic<int> times{0};
  static void call(void* self) { static_cast<Reached*>(self)->times.fetch_add(1, std::memory_order_release); }
};

inline void write_word(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

}  // namespace rr::test
