// CudaDevice over the fake driver: points of the caller's streams, and work streams.
#include <thread>

#include "doctest/doctest.h"
#include "gpu/cuda_checks.h"

namespace rr::test {
namespace {

TEST_CASE("cuda streams: a point passes when the stream has done what was put on it before, and not earlier") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  constexpr size_t kCount = 1000;
  for (uint32_t round = 1; round <= 20; ++round) {
    Program program(fake);
    const cu::Stream producer = program.stream();
    const cu::DevicePtr x = program.allocate(kCount * 4);
    const HostMemory source(*device, 4096);
    const HostMemory result(*device, 4096);
    for (size_t i = 0; i < kCount; ++i) source.as<float>()[i] = value(round, i);
    HeldStream held(fake, *device, producer);
    fake.driver->memcpy_async(x, device_ptr(source.data()), kCount * 4, producer);
    const auto point = device->record(producer);
    HeldStream behind(fake, *device, producer);
    CHECK_FALSE(point->passed());
    held.let_go();
    wait_for([&] { return point->passed(); });
    CHECK(point->passed());
    device->move(WorkStream::kCompute, {{host_ptr(x), result.data(), kCount}}, DType::kFloat32, DType::kFloat32, 2.0);
    finish(*device, WorkStream::kCompute);
    for (size_t i = 0; i < kCount; ++i) REQUIRE(result.as<float>()[i] == 2 * value(round, i));
    behind.let_go();
    program.synchronize(producer);
    fake.driver->mem_free(x);
  }
}

TEST_CASE("cuda streams: points of the default streams, and events that are used again") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  fake.fake_cuda_delay(nullptr, 500);
  const auto legacy = device->record(nullptr);
  const auto legacy_too = device->record(reinterpret_cast<Stream>(uintptr_t{1}));
  const auto of_thread = device->record(reinterpret_cast<Stream>(uintptr_t{2}));
  wait_for([&] { return legacy->passed() && legacy_too->passed() && of_thread->passed(); });
  const cu::Stream stream = program.stream();
  const uint64_t made = fake.calls("cuEventCreate");
  HeldStream held(fake, *device, stream);
  device->record(stream);  // dropped before it has passed
  const auto again = device->record(stream);
  CHECK(fake.calls("cuEventCreate") == made + 1);
  CHECK_FALSE(again->passed());
  held.let_go();
  wait_for([&] { return again->passed(); });
}

TEST_CASE("cuda streams: what is captured, and work of ours meanwhile") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  const cu::Stream stream = program.stream();
  const cu::Stream other = program.stream();
  CHECK_FALSE(device->is_capturing(stream));
  FakeCuda::check(fake.cuStreamBeginCapture_v2(stream, 0), "cuStreamBeginCapture");
  CHECK(device->is_capturing(stream));
  // Our own thread allocates, queries events, launches, with a capture in the strictest mode under way.
  std::thread([&] {
    std::byte* const data = device->allocate(64);
    const auto point = device->record(other);
    wait_for([&] { return point->passed(); });
    device->move(WorkStream::kCompute, {{data, data, 16}}, DType::kFloat32, DType::kFloat32, 1.0);
    finish(*device, WorkStream::kCompute);
    device->release(data);
  }).join();
  void* graph = nullptr;
  FakeCuda::check(fake.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CHECK_FALSE(device->is_capturing(stream));
}

TEST_CASE("cuda streams: a work stream that is added does not wait for others, and is given out again") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const Program program(fake);
  constexpr size_t kParts = 1000;  // a table that has to be uploaded, and is used in both work streams
  const HostMemory source(*device, kParts * 16);
  const HostMemory result(*device, kParts * 16);
  std::vector<DevicePart> parts;
  for (size_t i = 0; i < kParts; ++i) {
    source.as<float>()[4 * i] = value(i, i);
    parts.push_back({source.data() + 16 * i, result.data() + 16 * i, 1});
  }
  const WorkStream busy = device->add_work_stream();
  const WorkStream other = device->add_work_stream();
  CHECK(device->work_streams() == kWorkStreams + 2);
  HeldStream held(fake, *device, static_cast<cu::Stream>(device->stream(busy)));
  device->move(busy, parts, DType::kFloat32, DType::kFloat32, 3.0);
  const Mark end = device->mark(busy);
  for (const float factor : {2.0F, 1.0F}) {
    device->move(other, parts, DType::kFloat32, DType::kFloat32, factor);
    finish(*device, other);
    for (size_t i = 0; i < kParts; ++i) REQUIRE(result.as<float>()[4 * i] == factor * value(i, i));
  }
  CHECK_FALSE(device->passed(end));
  held.let_go();
  wait_for([&] { return device->passed(end); });
  for (size_t i = 0; i < kParts; ++i) REQUIRE(result.as<float>()[4 * i] == 3 * value(i, i));
  device->remove_work_stream(busy);
  CHECK(device->add_work_stream() == busy);
  CHECK(device->work_streams() == kWorkStreams + 2);
}

}  // namespace
}  // namespace rr::test
