// Ranks as threads that work on fake GPUs.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "fakes/fake_device.h"
#include "support/loopback_links.h"

namespace rr::test {

using rr_test::Bytes;

// A tensor in the memory of a fake GPU, as far as its owner goes.
class GpuTensor {
 public:
  GpuTensor(FakeDevice& device, DType dtype, std::vector<uint64_t> dims);
  GpuTensor(FakeDevice& device, DType dtype, std::vector<uint64_t> dims, const Bytes& bytes);
  GpuTensor(GpuTensor&& other) noexcept : device_(std::exchange(other.device_, nullptr)), view_(other.view_) {}
  GpuTensor& operator=(GpuTensor&&) = delete;
  GpuTensor(const GpuTensor&) = delete;
  GpuTensor& operator=(const GpuTensor&) = delete;
  ~GpuTensor();

  const TensorView& view() const { return view_; }
  void set(const Bytes& bytes);
  // What is in it; nothing behind it may have been written.
  Bytes get() const;

 private:
  static constexpr size_t kMargin = 64;
  FakeDevice* device_;
  TensorView view_;
};

struct GpuRank {
  Rank& rank;
  FakeDevice& gpu;
  Group& world;
};

// gpu_of: the options of each rank's GPU.
using GpuOf = std::function<FakeOptions(int)>;
GpuOf shared_gpu(uint64_t seed);
// `each` ranks on each GPU.
GpuOf own_gpus(uint64_t seed, int each = 1);

std::function<void(Rank&)> on_gpu(const GpuOf& gpu_of, const std::function<void(GpuRank&)>& body);

// shutdown() of a rank whose GPU stands still, and goes on when may_go_on().
void leave(GpuRank& rank, const std::function<bool()>& may_go_on);

OperationPtr run(GpuRank& rank, const Request& request);

// Bytes that depend on everything; whole small floating-point numbers would hide an order of additions.
Bytes random_bytes(DType dtype, size_t count, uint64_t seed);

}  // namespace rr::test
