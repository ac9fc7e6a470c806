// CudaDevice over the fake driver: order between streams, kernels, memory, captures.
#include "cuda/cuda_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "fake_cuda.h"

namespace rr {
namespace {

using test::FakeCuda;
using test::Program;

// No wait of ours is for time: this is when a test gives up.
template <class Condition>
void until(Condition&& condition) {
  const Deadline deadline = Deadline::after_s(60);
  while (!condition()) {
    if (deadline.passed()) throw std::runtime_error("nothing has happened for 60 s");
    ::usleep(50);
  }
}

void finish(Device& device, Lane lane) {
  const Mark mark = device.mark(lane);
  until([&] { return device.passed(mark); });
}

float value(size_t rank, size_t i) { return static_cast<float>(rank + 1) * 0.25F + static_cast<float>(i % 97); }

std::vector<float> values(size_t rank, size_t count) {
  std::vector<float> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = value(rank, i);
  return all;
}

// Host memory of whole pages that a lane may use.
class Pinned {
 public:
  Pinned(Device& device, size_t nbytes) : device_(device), nbytes_(nbytes) {
    data_ =
        static_cast<std::byte*>(::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
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

void write_word(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

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
  ::setenv("RINGREDUCE_CUDA_LIBRARY", RR_FAKE_CUDA, 1);
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
  finish(*device, Lane::kCompute);
  fake.driver->ctx_get_current(&current);
  CHECK(current == nullptr);
  const Program other(fake, 1);
  device->release(data);
  data = device->allocate(1);
  fake.driver->ctx_get_current(&current);
  CHECK(current == other.context());
  device->release(data);
}

TEST_CASE("cuda device: a notify comes after the stream's work, and a hold keeps it from going on") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  constexpr size_t kCount = 1000;
  for (uint32_t round = 1; round <= 20; ++round) {
    Program program(fake);
    const cu::Stream producer = program.stream();
    const cu::Stream consumer = program.stream();
    const cu::DevicePtr x = program.allocate(kCount * 4);
    const cu::DevicePtr y = program.allocate(kCount * 4);
    const Pinned source(*device, 4096);
    const Pinned result(*device, 4096);
    for (size_t i = 0; i < kCount; ++i) source.floats()[i] = value(round, i);
    Reached reached;
    fake.fake_cuda_delay(producer, 500);
    fake.driver->memcpy_async(x, device_ptr(source.data()), kCount * 4, producer);
    device->notify(producer, &Reached::call, &reached);
    device->hold(consumer, device->words() + 7, round);
    fake.driver->memcpy_async(device_ptr(result.data()), y, kCount * 4, consumer);
    until([&] { return reached.times.load(std::memory_order_acquire) == 1; });
    device->move(Lane::kCompute, {{host_ptr(x), host_ptr(y), kCount}}, DType::kFloat32, DType::kFloat32, 2.0);
    finish(*device, Lane::kCompute);
    write_word(device->words() + 7, round);
    program.synchronize(consumer);
    for (size_t i = 0; i < kCount; ++i) REQUIRE(result.floats()[i] == 2 * value(round, i));
    fake.driver->mem_free(x);
    fake.driver->mem_free(y);
  }
  CHECK_THROWS_AS(device->hold(nullptr, device->words() + Device::kWords, 1), InvalidArgumentError);
}

TEST_CASE("cuda device: lanes run beside each other and follow marks") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const uint64_t events = fake.calls("cuEventCreate");
  constexpr size_t kCount = 1024;
  const Pinned in(*device, 4096);
  const Pinned out(*device, 4096);
  std::byte* const a = device->allocate(kCount * 4);
  std::byte* const b = device->allocate(kCount * 4);
  CHECK_FALSE(device->is_busy());
  CHECK(device->passed({Lane::kToHost, 0}));
  for (size_t round = 0; round < 100; ++round) {
    for (size_t i = 0; i < kCount; ++i) in.floats()[i] = value(round, i);
    device->copy(Lane::kToDevice, a, in.data(), kCount * 4);
    device->follow(Lane::kCompute, device->mark(Lane::kToDevice));
    device->move(Lane::kCompute, {{a, b, kCount}}, DType::kFloat32, DType::kFloat32, 0.5);
    device->follow(Lane::kToHost, device->mark(Lane::kCompute));
    device->copy(Lane::kToHost, out.data(), b, kCount * 4);
    CHECK(device->is_busy());
    const Mark end = device->mark(Lane::kToHost);
    until([&] { return device->passed(end); });
    for (size_t i = 0; i < kCount; ++i) REQUIRE(out.floats()[i] == 0.5F * value(round, i));
  }
  // What the last mark of a lane has followed has passed as well, but was not asked for.
  CHECK(device->is_busy());
  CHECK(device->passed({Lane::kToDevice, 100}));
  CHECK(device->passed({Lane::kToDevice, 3}));
  CHECK(device->passed({Lane::kCompute, 100}));
  CHECK_FALSE(device->is_busy());
  CHECK_THROWS_AS(device->passed({Lane::kCompute, 101}), Error);
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
    device->fold(Lane::kCompute, {{{at[0], at[1], at[2]}, {at[2], at[0]}, count}}, reduction);
    finish(*device, Lane::kCompute);
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
    std::byte* const code = device->allocate(wire_nbytes(Wire::kInt8, count) + 1);
    device->encode(Lane::kCompute, Wire::kInt8, at[1], code, count);
    device->decode(Lane::kCompute, Wire::kInt8, code, at[0], count);
    finish(*device, Lane::kCompute);
    wire_round_trip(cpu, Wire::kInt8, inputs[1].data(), count);
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
    device->move(Lane::kCompute, parts(round), DType::kFloat32, DType::kFloat32, 1.0);
    device->mark(Lane::kCompute);
  }
  finish(*device, Lane::kCompute);
  for (size_t round = 0; round < kRounds; ++round) REQUIRE(wrong(round, 1) == 0);
  CHECK(fake.calls("cuMemcpyAsync") == before + kRounds);
  // The last ones are there still: for the same lane at once, for others when they have got there.
  std::memset(dst, 0, kRounds * kFloats * 4);
  device->move(Lane::kCompute, parts(kRounds - 1), DType::kFloat32, DType::kFloat32, 1.0);
  device->move(Lane::kToHost, parts(kRounds - 2), DType::kFloat32, DType::kFloat32, 1.0);
  finish(*device, Lane::kCompute);
  finish(*device, Lane::kToHost);
  CHECK(wrong(kRounds - 1, 1) == 0);
  CHECK(wrong(kRounds - 2, 1) == 0);
  CHECK(fake.calls("cuMemcpyAsync") == before + kRounds);
  device->release(src);
  device->release(dst);
}

TEST_CASE("cuda device: pinned memory, whoever pinned it") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const Program program(fake);
  const auto mapped = [](size_t nbytes) {
    return static_cast<std::byte*>(::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  };
  std::byte* const mine = mapped(8192);
  device->pin(mine, 8192);
  device->pin(mine, 8192);
  device->unpin(mine);
  cu::DevicePtr at = 0;
  CHECK(fake.driver->mem_host_get_device_pointer(&at, mine, 0) == cu::kSuccess);
  device->unpin(mine);
  CHECK(fake.driver->mem_host_get_device_pointer(&at, mine, 0) != cu::kSuccess);
  // Somebody else's registration serves, and stays theirs.
  CHECK(fake.driver->mem_host_register(mine, 8192, 1) == cu::kSuccess);
  device->pin(mine, 8192);
  device->unpin(mine);
  CHECK(fake.driver->mem_host_get_device_pointer(&at, mine, 0) == cu::kSuccess);
  CHECK(fake.driver->mem_host_unregister(mine) == cu::kSuccess);
  // Half of it does not.
  CHECK(fake.driver->mem_host_register(mine, 4096, 1) == cu::kSuccess);
  CHECK_THROWS_WITH_AS(device->pin(mine, 8192), doctest::Contains("pinning 8192 bytes"), InternalError);
  CHECK(fake.driver->mem_host_unregister(mine) == cu::kSuccess);
  fake.fail("cuMemHostRegister:1:801");
  CHECK_THROWS_WITH_AS(device->pin(mine, 8192), doctest::Contains("CUDA_ERROR_NOT_SUPPORTED"), InternalError);
  device->pin(mine, 8192);
  ::munmap(mine, 8192);  // the device unregisters it at its end
}

TEST_CASE("cuda device: memory is given out while another thread unpins, which waits for a stream that is held") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  const cu::Stream stream = program.stream();
  auto pinned = std::make_unique<Pinned>(*device, 8192);
  device->hold(stream, device->words(), 1);
  std::atomic<bool> unpins{false}, is_unpinned{false}, is_allocated{false};
  std::thread unpinning([&] {
    unpins = true;
    pinned.reset();
    is_unpinned = true;
  });
  until([&] { return unpins.load(); });
  std::thread allocating([&] {
    device->release(device->allocate(size_t{1} << 20));
    is_allocated = true;
  });
  const Deadline deadline = Deadline::after_s(20);
  while (!is_allocated && !deadline.passed()) ::usleep(50);
  CHECK(is_allocated.load());
  CHECK_FALSE(is_unpinned.load());
  write_word(device->words(), 1);
  unpinning.join();
  allocating.join();
}

TEST_CASE("cuda holds: who issues one and is kept there keeps nobody from freeing later") {
  CudaHolds holds;
  uint32_t word = 0;
  int freed = 0;
  std::atomic<bool> is_inside{false}, may_leave{false};
  std::thread caller([&] {
    holds.hold(&word, 1, false, [&] {
      is_inside = true;
      until([&] { return may_leave.load(); });
    });
  });
  until([&] { return is_inside.load(); });
  holds.later([&] { ++freed; });
  holds.collect();
  CHECK_FALSE(holds.free_now([&] { ++freed; }));
  CHECK(freed == 0);
  may_leave = true;
  caller.join();
  holds.collect();
  CHECK(freed == 0);  // it is out
  write_word(&word, 1);
  holds.collect();
  CHECK(freed == 1);
  CHECK(holds.free_now([&] { ++freed; }));
  CHECK(freed == 2);
}

TEST_CASE("cuda device: released memory is given out again, and freed when the GPU is full") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  std::byte* const a = device->allocate(1000000);
  CHECK(reinterpret_cast<uintptr_t>(a) % 256 == 0);
  device->release(a);
  CHECK(device->allocate(990000) == a);
  CHECK_THROWS_AS(device->release(a + 1), InvalidArgumentError);
  device->release(a);
  std::byte* const small = device->allocate(1);  // not a hundred times as much
  CHECK(small != a);
  const uint64_t freed = fake.calls("cuMemFree");
  fake.fail("cuMemAlloc:1:2");
  std::byte* const large = device->allocate(size_t{2} << 20);
  CHECK(fake.calls("cuMemFree") == freed + 1);
  // While a stream holds for a word of ours, freeing might wait for ourselves.
  Program program(fake);
  const cu::Stream stream = program.stream();
  device->hold(stream, device->words(), 1);
  device->release(large);
  fake.fail("cuMemAlloc:1+:2");
  CHECK_THROWS_WITH_AS(device->allocate(size_t{4} << 20), doctest::Contains("torch.cuda.empty_cache()"), InternalError);
  CHECK(fake.calls("cuMemFree") == freed + 1);
  write_word(device->words(), 1);
  CHECK_THROWS_AS(device->allocate(size_t{4} << 20), InternalError);
  CHECK(fake.calls("cuMemFree") == freed + 2);
  fake.reset();
  CHECK(device->allocate(1) != nullptr);  // nothing of it stays
}

TEST_CASE("cuda device: what is to be freed waits for holds") {
  CudaHolds holds;
  std::vector<uint32_t> words(200);
  int issued = 0;
  int freed = 0;
  const auto issue = [&] { ++issued; };
  holds.hold(&words[0], 5, false, issue);
  holds.later([&] { ++freed; });
  holds.collect();
  CHECK(freed == 0);
  words[0] = 4;
  CHECK_FALSE(holds.free_now([] {}));
  words[0] = 6;  // a later operation's
  holds.collect();
  CHECK(freed == 1);
  // Values wrap around, and many that are over cost nothing.
  words[1] = 0xFFFFFFFF;
  holds.hold(&words[1], 3, false, issue);
  for (size_t i = 2; i < 200; ++i) holds.hold(&words[i], 1, false, issue);
  for (auto& word : words) word = 3;
  CHECK(holds.free_now([] {}));
  // A captured one may come again at any time.
  holds.hold(&words[0], 1, true, issue);
  holds.later([&] { ++freed; });
  holds.collect();
  CHECK_FALSE(holds.free_now([] {}));
  CHECK_FALSE(holds.collect_all());
  CHECK(freed == 1);
  CHECK(issued == 201);
  CHECK_THROWS_AS(holds.hold(&words[0], 1, false, [] { throw Error("no"); }), Error);
}

TEST_CASE("cuda device: a stream that holds when the device ends goes on") {
  auto& fake = FakeCuda::get();
  Program program(fake);
  const cu::Stream stream = program.stream();
  auto device = fake.device(0);
  std::byte* const a = device->allocate(64);
  device->hold(stream, device->words() + 1, 9);
  static_cast<void>(a);
  device.reset();
  program.synchronize(stream);
}

TEST_CASE("cuda device: notify and hold are captured, and every replay is an operation") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  const cu::Stream stream = program.stream();
  constexpr size_t kCount = 500;
  const cu::DevicePtr x = program.allocate(kCount * 4);
  const Pinned in(*device, 4096);
  const Pinned out(*device, 4096);
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
    device->move(Lane::kCompute, {{data, data, 16}}, DType::kFloat32, DType::kFloat32, 1.0);
    finish(*device, Lane::kCompute);
    device->release(data);
  }).join();
  void* graph = nullptr;
  FakeCuda::check(fake.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CHECK(reached.times == 0);
  for (int replay = 1; replay <= 3; ++replay) {
    write_word(device->words() + 3, 0);
    for (size_t i = 0; i < kCount; ++i) in.floats()[i] = value(static_cast<size_t>(replay), i);
    FakeCuda::check(fake.cuGraphLaunch(graph, stream), "cuGraphLaunch");
    until([&] { return reached.times.load(std::memory_order_acquire) == replay; });
    device->move(Lane::kCompute, {{host_ptr(x), host_ptr(x), kCount}}, DType::kFloat32, DType::kFloat32, 4.0);
    finish(*device, Lane::kCompute);
    write_word(device->words() + 3, 1);
    program.synchronize(stream);
    for (size_t i = 0; i < kCount; ++i) REQUIRE(out.floats()[i] == 4 * value(static_cast<size_t>(replay), i));
  }
  fake.driver->mem_free(x);
}

TEST_CASE("cuda device: the default streams are the caller's too") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const Program program(fake);
  Reached reached;
  fake.fake_cuda_delay(nullptr, 500);
  device->notify(nullptr, &Reached::call, &reached);
  until([&] { return reached.times.load(std::memory_order_acquire) == 1; });
  device->notify(reinterpret_cast<Stream>(uintptr_t{1}), &Reached::call, &reached);
  device->notify(reinterpret_cast<Stream>(uintptr_t{2}), &Reached::call, &reached);
  until([&] { return reached.times.load(std::memory_order_acquire) == 3; });
}

TEST_CASE("cuda device: after a sticky error every call repeats the first, and the device can still end") {
  auto& fake = FakeCuda::get();
  {
    const auto device = fake.device(0);
    std::byte* const data = device->allocate(64);
    fake.fail("kernel:1:700");
    device->move(Lane::kCompute, {{data, data, 16}}, DType::kFloat32, DType::kFloat32, 1.0);
    CHECK_THROWS_WITH_AS(finish(*device, Lane::kCompute), doctest::Contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
                         InternalError);
    fake.fail("cuMemAlloc:1+:2");
    const auto repeats = [](const std::function<void()>& call) {
      CHECK_THROWS_WITH_AS(call(), doctest::Contains("an illegal memory access was encountered"), InternalError);
    };
    repeats([&] { device->allocate(64); });
    repeats([&] { device->mark(Lane::kToHost); });
    repeats([&] { device->passed({Lane::kToHost, 0}); });
    repeats([&] { device->notify(nullptr, &Reached::call, nullptr); });
    repeats([&] { device->hold(nullptr, device->words(), 1); });
    uint64_t offset = 0;
    repeats([&] { device->exported(data, 64, offset); });
    device->release(data);
  }
  fake.reset();
  const auto device = fake.device(0);
  // An error that is not sticky is that call's alone.
  fake.fail("cuEventRecord:1:400");
  CHECK_THROWS_WITH_AS(device->mark(Lane::kCompute), doctest::Contains("cuEventRecord: CUDA_ERROR_INVALID_HANDLE"),
                       InternalError);
  finish(*device, Lane::kCompute);
}

}  // namespace
}  // namespace rr
