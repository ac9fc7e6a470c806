#include "fakes/fake_gpu_ranks.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

namespace rr::test {

GpuTensor::GpuTensor(FakeDevice& device, DType dtype, std::vector<uint64_t> dims) : device_(&device) {
  view_.dtype = dtype;
  view_.place = Place::kDevice;
  view_.set_shape(dims.size(), [&](size_t i) { return dims[i]; });
  view_.data = device.allocate(view_.nbytes() + kMargin);
  std::memset(FakeDevice::host(view_.data), 0xEE, view_.nbytes() + kMargin);
}
GpuTensor::GpuTensor(FakeDevice& device, DType dtype, std::vector<uint64_t> dims, const Bytes& bytes)
    : GpuTensor(device, dtype, std::move(dims)) {
  set(bytes);
}

GpuTensor::~GpuTensor() {
  if (device_ != nullptr) device_->release(view_.data);
}

void GpuTensor::set(const Bytes& bytes) {
  expect(bytes.size() == view_.nbytes(), "bytes of the tensor");
  if (!bytes.empty()) std::memcpy(FakeDevice::host(view_.data), bytes.data(), bytes.size());
}
Bytes GpuTensor::get() const {
  const auto* at = reinterpret_cast<const uint8_t*>(FakeDevice::host(view_.data));
  const auto* end = at + view_.nbytes();
  expect(std::all_of(end, end + kMargin, [](uint8_t byte) { return byte == 0xEE; }), "nothing beyond the tensor");
  return Bytes(at, end);
}

GpuOf shared_gpu(uint64_t seed) {
  return [seed](int rank) {
    FakeOptions options;
    options.seed = seed + static_cast<uint64_t>(rank);
    return options;
  };
}
GpuOf own_gpus(uint64_t seed, int each) {
  return [seed, each](int rank) {
    FakeOptions options;
    options.seed = seed + static_cast<uint64_t>(rank);
    options.id = fake_gpu(rank / each);
    options.ordinal = rank / each;
    return options;
  };
}

std::function<void(Rank&)> on_gpu(const GpuOf& gpu_of, const std::function<void(GpuRank&)>& body) {
  return [gpu_of, body](Rank& rank) {
    const auto device = std::make_shared<FakeDevice>(gpu_of(rank.rank));
    rank.context.gpu().use(device);
    GpuRank one = {rank, *device, rank.world};
    body(one);
  };
}

void leave(GpuRank& rank, const std::function<bool()>& may_go_on) {
  run_threads(2, [&](int thread) {
    if (thread == 0) return rank.rank.context.shutdown();
    wait_for(may_go_on);
    rank.gpu.advance();
  });
}

OperationPtr run(GpuRank& rank, const Request& request) {
  const OperationPtr operation = rank.world.submit(request, nullptr);
  rank.world.wait(*operation, -1, nullptr);
  return operation;
}

Bytes random_bytes(DType dtype, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + count);
  std::normal_distribution<double> normal;
  Bytes bytes(count * itemsize(dtype));
  for (size_t i = 0; i < count; ++i) {
    const double value = normal(random);
    switch (dtype) {
      case DType::kFloat16:
        rr_test::put(bytes, i, rr_test::encode(rr_test::kFp16, static_cast<float>(value)));
        break;
      case DType::kBFloat16:
        rr_test::put(bytes, i, rr_test::encode(rr_test::kBf16, static_cast<float>(value)));
        break;
      case DType::kFloat32:
        rr_test::put(bytes, i, static_cast<float>(value));
        break;
      case DType::kFloat64:
        rr_test::put(bytes, i, value);
        break;
      case DType::kBool:
        rr_test::put(bytes, i, static_cast<uint8_t>(random() % 2));
        break;
      default:
        for (size_t b = 0; b < itemsize(dtype); ++b) bytes[i * itemsize(dtype) + b] = static_cast<uint8_t>(random());
    }
  }
  return bytes;
}

}  // namespace rr::test
