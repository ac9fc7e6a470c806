// CudaDevice over the fake driver: the caller's streams, and graphs of them.
#include <thread>

#include "cuda_checks.h"
#include "doctest/doctest.h"

namespace rr::test {
namespace {

TEST_CASE("cuda streams: a notify comes after the stream's work, and a hold keeps it from going on") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  constexpr size_t kCount = 1000;
  for (uint32_t round = 1; round <= 20; ++round) {
    Program program(fake);
    const cu::Stream producer = program.stream();
    const cu::Stream consumer = program.stream();
    const cu::DevicePtr x = program.allocate(kCount * 4);
    const cu::DevicePtr y = program.allocate(kCount * 4);
    const HostMemory source(*device, 4096);
    const HostMemory result(*device, 4096);
    for (size_t i = 0; i < kCount; ++i) source.as<float>()[i] = value(round, i);
    Reached reached;
    fake.fake_cuda_delay(producer, 500);
    fake.driver->memcpy_async(x, device_ptr(source.data()), kCount * 4, producer);
    device->notify(producer, &Reached::call, &reached);
    device->hold(consumer, device->words() + 7, round);
    fake.driver->memcpy_async(device_ptr(result.data()), y, kCount * 4, consumer);
    wait_for([&] { return reached.times.load(std::memory_order_acquire) == 1; });
    device->move(WorkStream::kCompute, {{host_ptr(x), host_ptr(y), kCount}}, DType::kFloat32, DType::kFloat32, 2.0);
    finish(*device, WorkStream::kCompute);
    write_word(device->words() + 7, round);
    program.synchronize(consumer);
    for (size_t i = 0; i < kCount; ++i) REQUIRE(result.as<float>()[i] == 2 * value(round, i));
    fake.driver->mem_free(x);
    fake.driver->mem_free(y);
  }
  CHECK_THROWS_AS(device->hold(nullptr, device->words() + Device::kWords, 1), InvalidArgumentError);
}

TEST_CASE("cuda streams: the default streams are the caller's too") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const Program program(fake);
  Reached reached;
  fake.fake_cuda_delay(nullptr, 500);
  device->notify(nullptr, &Reached::call, &reached);
  wait_for([&] { return reached.times.load(std::memory_order_acquire) == 1; });
  device->notify(reinterpret_cast<Stream>(uintptr_t{1}), &Reached::call, &reached);
  device->notify(reinterpret_cast<Stream>(uintptr_t{2}), &Reached::call, &reached);
  wait_for([&] { return reached.times.load(std::memory_order_acquire) == 3; });
}

TEST_CASE("cuda streams: a stream that holds when the device ends goes on") {
  auto& fake = FakeCuda::get();
  Program program(fake);
  const cu::Stream stream = program.stream();
  auto device = fake.device(0);
  device->allocate(64);  // freeing it must not wait for the stream
  device->hold(stream, device->words() + 1, 9);
  device.reset();
  program.synchronize(stream);
}

TEST_CASE("cuda streams: notify and hold are captured, and every replay is an operation") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  const cu::Stream stream = program.stream();
  constexpr size_t kCount = 500;
  const cu::DevicePtr x = program.allocate(kCount * 4);
  const HostMemory in(*device, 4096);
  const HostMemory out(*device, 4096);
  Reached reached;
  CHECK_FALSE(device->is_capturing(stream));
  FakeCuda::check(fake.cuStreamBeginCapture_v2(stream, 0), "cuStreamBeginCapture");
  CHECK(device->is_capturing(stream));
  FakeCuda::check(fake.driver->memcpy_async(x, device_ptr(in.data()), kCount * 4, stream), "cuMemcpyAsync");
  device->notify(stream, &Reached::call, &reached);
  device->hold(stream, device->words() + 3, 1);
  FakeCuda::check(fake.driver->memcpy_async(device_ptr(out.data()), x, kCount * 4, stream), "cuMemcpyAsync");
  // Meanwhile our own thread allocates, queries events, launches: with a capture in the strictest mode under way.
  std::thread([&] {
    std::byte* const data = device->allocate(64);
    device->move(WorkStream::kCompute, {{data, data, 16}}, DType::kFloat32, DType::kFloat32, 1.0);
    finish(*device, WorkStream::kCompute);
    device->release(data);
  }).join();
  void* graph = nullptr;
  FakeCuda::check(fake.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CHECK(reached.times == 0);
  for (int replay = 1; replay <= 3; ++replay) {
    write_word(device->words() + 3, 0);
    for (size_t i = 0; i < kCount; ++i) in.as<float>()[i] = value(static_cast<size_t>(replay), i);
    FakeCuda::check(fake.cuGraphLaunch(graph, stream), "cuGraphLaunch");
    wait_for([&] { return reached.times.load(std::memory_order_acquire) == replay; });
    device->move(WorkStream::kCompute, {{host_ptr(x), host_ptr(x), kCount}}, DType::kFloat32, DType::kFloat32, 4.0);
    finish(*device, WorkStream::kCompute);
    write_word(device->words() + 3, 1);
    program.synchronize(stream);
    for (size_t i = 0; i < kCount; ++i) REQUIRE(out.as<float>()[i] == 4 * value(static_cast<size_t>(replay), i));
  }
  fake.driver->mem_free(x);
}

TEST_CASE("cuda streams: a work stream that is added does not wait for others, and is given out again") {
  const auto device = FakeCuda::get().device(0);
  constexpr size_t kParts = 1000;  // a table that has to be uploaded, and is used in both work streams
  const HostMemory source(*device, kParts * 16);
  const HostMemory result(*device, kParts * 16);
  std::vector<DevicePart> parts;
  for (size_t i = 0; i < kParts; ++i) {
    source.as<float>()[4 * i] = value(i, i);
    parts.push_back({source.data() + 16 * i, result.data() + 16 * i, 1});
  }
  const WorkStream held = device->add_work_stream();
  const WorkStream other = device->add_work_stream();
  CHECK(device->work_streams() == kWorkStreams + 2);
  device->hold(device->stream(held), device->words() + 5, 1);
  device->move(held, parts, DType::kFloat32, DType::kFloat32, 3.0);
  const Mark end = device->mark(held);
  for (const float factor : {2.0F, 1.0F}) {
    device->move(other, parts, DType::kFloat32, DType::kFloat32, factor);
    finish(*device, other);
    for (size_t i = 0; i < kParts; ++i) REQUIRE(result.as<float>()[4 * i] == factor * value(i, i));
  }
  CHECK_FALSE(device->passed(end));
  write_word(device->words() + 5, 1);
  wait_for([&] { return device->passed(end); });
  for (size_t i = 0; i < kParts; ++i) REQUIRE(result.as<float>()[4 * i] == 3 * value(i, i));
  device->remove_work_stream(held);
  CHECK(device->add_work_stream() == held);
  CHECK(device->work_streams() == kWorkStreams + 2);
}

}  // namespace
}  // namespace rr::test
