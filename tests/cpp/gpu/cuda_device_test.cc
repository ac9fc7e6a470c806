// CudaDevice over the fake driver: opening it, work streams, kernels and their tables, errors.
#include "gpu/cuda/cuda_device.h"

#include <cstring>
#include <functional>

#include "doctest/doctest.h"
#include "gpu/cuda_checks.h"

namespace rr::test {
namespace {

TEST_CASE("cuda device: what it says of the GPU, and errors of opening one") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(1);
  CHECK(device->ordinal() == 1);
  CHECK(device->name() == "Fake GPU");
  CHECK_FALSE(device->id() == fake.device(0)->id());
  CHECK_THROWS_WITH_AS(fake.device(2), doctest::Contains("GPU 2 does not exist: this process sees 2"),
                       UnavailableError);
  CHECK_THROWS_WITH_AS(CudaDriver::open("libnone.so.7"), doctest::Contains("RINGREDUCE_CUDA_LIBRARY"),
                       UnavailableError);
  CHECK_THROWS_WITH_AS(CudaDriver::open("libm.so.6"), doctest::Contains("lacks cuGetErrorName"), UnavailableError);
  fake.fail("cuDevicePrimaryCtxRetain:1:2");
  CHECK_THROWS_WITH_AS(fake.device(0), doctest::Contains("CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"),
                       UnavailableError);
  fake.fail("cuModuleLoadData:1:222");
  CHECK_THROWS_WITH_AS(fake.device(0), doctest::Contains("loading the kernels"), InternalError);
  fake.fail("cuMemHostAlloc:1:2");
  CHECK_THROWS_AS(fake.device(0), InternalError);
  ::setenv("RINGREDUCE_CUDA_LIBRARY", fake_cuda_library().c_str(), 1);
  CHECK(cuda_device(1)->id() == device->id());
  ::setenv("RINGREDUCE_CUDA_LIBRARY", "libnone.so.7", 1);
  CHECK_THROWS_AS(cuda_device(0), UnavailableError);
  ::unsetenv("RINGREDUCE_CUDA_LIBRARY");
}

TEST_CASE("cuda device: the caller's context stays current, and none if there was none") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  cu::Context current = nullptr;
  std::byte* data = device->allocate(1);
  finish(*device, WorkStream::kCompute);
  fake.driver->ctx_get_current(&current);
  CHECK(current == nullptr);
  const Program other(fake, 1);
  device->release(data);
  data = device->allocate(1);
  fake.driver->ctx_get_current(&current);
  CHECK(current == other.context());
  device->release(data);
}

TEST_CASE("cuda device: work streams run beside each other and follow marks") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const uint64_t events = fake.calls("cuEventCreate");
  constexpr size_t kCount = 1024;
  const HostMemory in(*device, 4096);
  const HostMemory out(*device, 4096);
  std::byte* const a = device->allocate(kCount * 4);
  std::byte* const b = device->allocate(kCount * 4);
  CHECK_FALSE(device->is_busy());
  CHECK(device->passed({WorkStream::kToHost, 0}));
  for (size_t round = 0; round < 100; ++round) {
    for (size_t i = 0; i < kCount; ++i) in.as<float>()[i] = value(round, i);
    device->copy(WorkStream::kToDevice, a, in.data(), kCount * 4);
    device->follow(WorkStream::kCompute, device->mark(WorkStream::kToDevice));
    device->move(WorkStream::kCompute, {{a, b, kCount}}, DType::kFloat32, DType::kFloat32, 0.5);
    device->follow(WorkStream::kToHost, device->mark(WorkStream::kCompute));
    device->copy(WorkStream::kToHost, out.data(), b, kCount * 4);
    CHECK(device->is_busy());
    const Mark end = device->mark(WorkStream::kToHost);
    wait_for([&] { return device->passed(end); });
    for (size_t i = 0; i < kCount; ++i) REQUIRE(out.as<float>()[i] == 0.5F * value(round, i));
  }
  // What the last mark of a work stream has followed has passed as well, but was not asked for.
  CHECK(device->is_busy());
  CHECK(device->passed({WorkStream::kToDevice, 100}));
  CHECK(device->passed({WorkStream::kToDevice, 3}));
  CHECK(device->passed({WorkStream::kCompute, 100}));
  CHECK_FALSE(device->is_busy());
  CHECK_THROWS_AS(device->passed({WorkStream::kCompute, 101}), Error);
  CHECK(fake.calls("cuEventCreate") < events + 40);  // used again, also where nobody has asked for a mark
  device->release(a);
  device->release(b);
}

TEST_CASE("cuda device: folds and codecs give what the CPU's kernels give") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const Kernels& cpu = kernels(Isa::kPortable);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{1023}, size_t{20011}}) {
    CAPTURE(count);
    std::vector<std::byte*> at;
    std::vector<std::vector<float>> inputs;
    for (size_t rank = 0; rank < 3; ++rank) {
      inputs.push_back(values(rank, count));
      at.push_back(device->allocate(count * 4 + 4));
      if (count != 0) std::memcpy(at[rank], inputs[rank].data(), count * 4);  // nothing is under way
    }
    Reduction reduction;
    reduction.op = ReduceOp::kAverage;
    reduction.divisor = 3;
    device->fold(WorkStream::kCompute, {{{at[0], at[1], at[2]}, {at[2], at[0]}, count}}, reduction);
    finish(*device, WorkStream::kCompute);
    std::vector<float> expected(count + 1);
    const void* const srcs[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
    void* const dst = expected.data();
    cpu.reduce(reduction, srcs, 3, &dst, 1, count);
    const auto is = [&](const std::byte* data, const std::vector<float>& values) {
      return count == 0 || std::memcmp(data, values.data(), count * 4) == 0;
    };
    CHECK(is(at[2], expected));
    CHECK(is(at[0], expected));
    CHECK(is(at[1], inputs[1]));
    std::byte* const code = device->allocate(codec_nbytes(Codec::kInt8, count) + 1);
    device->encode(WorkStream::kCompute, Codec::kInt8, at[1], code, count);
    device->decode(WorkStream::kCompute, Codec::kInt8, code, at[0], count);
    finish(*device, WorkStream::kCompute);
    codec_round_trip(cpu, Codec::kInt8, inputs[1].data(), count);
    CHECK(is(at[0], inputs[1]));
    for (std::byte* data : at) device->release(data);
    device->release(code);
  }
}

TEST_CASE("cuda device: a long list's table goes up once, and stays until its launches have ended") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  constexpr size_t kParts = 700;
  constexpr size_t kFloats = kParts * 16;
  constexpr size_t kRounds = 200;  // lists, each of its own: more than there are slots
  std::byte* const src = device->allocate(kFloats * 4);
  std::byte* const dst = device->allocate(kRounds * kFloats * 4);
  for (size_t i = 0; i < kFloats; ++i) reinterpret_cast<float*>(src)[i] = value(i / 97, i);
  std::memset(dst, 0, kRounds * kFloats * 4);
  const auto parts = [&](size_t round) {  // shifted by so many parts, into memory of its own
    std::vector<DevicePart> list;
    for (size_t i = 0; i < kParts; ++i) {
      list.push_back({src + (i + round) % kParts * 64, dst + (round * kParts + i) * 64, 16});
    }
    return list;
  };
  const auto wrong = [&](size_t round, float factor) {
    size_t count = 0;
    for (size_t i = 0; i < kFloats; ++i) {
      const float expected = factor * reinterpret_cast<float*>(src)[(i + round * 16) % kFloats];
      if (reinterpret_cast<float*>(dst)[round * kFloats + i] != expected) ++count;
    }
    return count;
  };
  const uint64_t before = fake.calls("cuMemcpyAsync");
  for (size_t round = 0; round < kRounds; ++round) {
    device->move(WorkStream::kCompute, parts(round), DType::kFloat32, DType::kFloat32, 1.0);
    device->mark(WorkStream::kCompute);
  }
  finish(*device, WorkStream::kCompute);
  for (size_t round = 0; round < kRounds; ++round) REQUIRE(wrong(round, 1) == 0);
  CHECK(fake.calls("cuMemcpyAsync") == before + kRounds);
  // The last ones are there still: for the same work stream at once, for others when they have got there.
  std::memset(dst, 0, kRounds * kFloats * 4);
  device->move(WorkStream::kCompute, parts(kRounds - 1), DType::kFloat32, DType::kFloat32, 1.0);
  device->move(WorkStream::kToHost, parts(kRounds - 2), DType::kFloat32, DType::kFloat32, 1.0);
  finish(*device, WorkStream::kCompute);
  finish(*device, WorkStream::kToHost);
  CHECK(wrong(kRounds - 1, 1) == 0);
  CHECK(wrong(kRounds - 2, 1) == 0);
  CHECK(fake.calls("cuMemcpyAsync") == before + kRounds);
  device->release(src);
  device->release(dst);
}

TEST_CASE("cuda device: after a sticky error every call repeats the first, and the device can still end") {
  auto& fake = FakeCuda::get();
  {
    const auto device = fake.device(0);
    std::byte* const data = device->allocate(64);
    fake.fail("kernel:1:700");
    device->move(WorkStream::kCompute, {{data, data, 16}}, DType::kFloat32, DType::kFloat32, 1.0);
    CHECK_THROWS_WITH_AS(finish(*device, WorkStream::kCompute), doctest::Contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
                         InternalError);
    fake.fail("cuMemAlloc:1+:2");
    const auto repeats = [](const std::function<void()>& call) {
      CHECK_THROWS_WITH_AS(call(), doctest::Contains("an illegal memory access was encountered"), InternalError);
    };
    repeats([&] { device->allocate(64); });
    repeats([&] { device->mark(WorkStream::kToHost); });
    repeats([&] { device->passed({WorkStream::kToHost, 0}); });
    repeats([&] { device->record(nullptr); });
    uint64_t offset = 0;
    std::shared_ptr<void> keep;
    repeats([&] { device->exported(data, 64, offset, keep); });
    device->release(data);
  }
  fake.reset();
  const auto device = fake.device(0);
  // An error that is not sticky is that call's alone.
  fake.fail("cuEventRecord:1:400");
  CHECK_THROWS_WITH_AS(device->mark(WorkStream::kCompute),
                       doctest::Contains("cuEventRecord: CUDA_ERROR_INVALID_HANDLE"), InternalError);
  finish(*device, WorkStream::kCompute);
}

}  // namespace
}  // namespace rr::test
