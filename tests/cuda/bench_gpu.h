// What the two halves of rr_gpu share: a GPU whose work streams are waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "gpu/device.h"
#include "host_memory.h"

namespace rr {

constexpr double kPatienceS = 60;  // under compute-sanitizer a launch may take seconds

class DeviceMemory {
 public:
  DeviceMemory(Device& device, size_t nbytes) : device_(device), data_(device.allocate(nbytes)) {}
  ~DeviceMemory() { device_.release(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  Device& device_;
  std::byte* data_;
};

// Until all that was issued to the work stream is done. Throws TimeoutError.
inline void await(Device& device, WorkStream work_stream) {
  const Mark mark = device.mark(work_stream);
  const Deadline deadline = Deadline::after_s(kPatienceS);
  while (!device.passed(mark)) {
    if (deadline.passed()) throw TimeoutError("a work stream of " + device.name() + " did not finish within 60 s");
    std::this_thread::yield();
  }
}

inline void to_device(Device& device, std::byte* dst, const std::byte* src, size_t nbytes) {
  device.copy(WorkStream::kCompute, dst, src, nbytes);
  await(device, WorkStream::kCompute);
}

inline void to_host(Device& device, std::byte* dst, const std::byte* src, size_t nbytes) {
  device.copy(WorkStream::kCompute, dst, src, nbytes);
  await(device, WorkStream::kCompute);
}

// check.cc: every kernel once for each dtype and operation, bit for bit as on the CPU; few: of each kernel few cases,
// for compute-sanitizer. Returns the number of cases that differ, each with a line on stderr.
int check_kernels(Device& device, bool few);

// A list of tensors, as pack and unpack get it.
struct TensorList {
  std::string name;
  std::vector<size_t> counts;  // elements, float32
};

// bench.cc: one line of JSON on stdout for each figure.
int bench_kernels(Device& device, const std::vector<TensorList>& lists, size_t max_nbytes);

}  // namespace rr
