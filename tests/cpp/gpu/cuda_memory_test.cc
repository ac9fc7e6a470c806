// CudaDevice over the fake driver: pinned memory, device memory, and when it may be freed.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "gpu/cuda_checks.h"
#include "gpu/pinned_pages.h"

namespace rr::test {
namespace {

TEST_CASE("cuda memory: pinned memory, whoever pinned it") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  const Program program(fake);
  std::byte* const mine = pages(8192);
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

TEST_CASE("cuda memory: memory is given out while another thread unpins, which waits for a stream") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  const cu::Stream stream = program.stream();
  auto pinned = std::make_unique<HostMemory>(*device, 8192);
  HeldStream held(fake, *device, stream);
  std::atomic<bool> unpins{false}, is_unpinned{false}, is_allocated{false};
  std::thread unpinning([&] {
    unpins = true;
    pinned.reset();
    is_unpinned = true;
  });
  wait_for([&] { return unpins.load(); });
  std::byte* data = nullptr;
  std::thread allocating([&] {
    data = device->allocate(size_t{1} << 20);
    is_allocated = true;
  });
  const Deadline deadline = Deadline::after_s(20);
  while (!is_allocated && !deadline.passed()) ::usleep(50);
  CHECK(is_allocated.load());
  CHECK_FALSE(is_unpinned.load());
  held.let_go();
  unpinning.join();
  allocating.join();
  device->release(data);
}

TEST_CASE("cuda memory: what is released is freed once no stream can read it, and not given out again before") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  std::byte* const a = device->allocate(1000000);
  CHECK(reinterpret_cast<uintptr_t>(a) % 256 == 0);
  HeldStream held(fake, *device, program.stream());
  device->release(a);  // does not wait
  CHECK(device->released_nbytes() == 1000000);
  std::byte* const b = device->allocate(1000000);
  CHECK(b != a);
  std::atomic<bool> is_free{false};
  std::thread freeing([&] {
    device->free_released();
    is_free = true;
  });
  wait_for([&] { return device->released_nbytes() == 0; });
  CHECK_FALSE(is_free.load());
  held.let_go();
  freeing.join();
  device->release(b);
}

TEST_CASE("cuda memory: nothing is freed to make room under a lock while work waits for peers") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  device->release(device->allocate(1000000));
  HeldStream held(fake, *device, program.stream());
  const uint64_t freed = fake.calls("cuMemFree");
  device->begin_waiting_for_peers();
  fake.fail("cuMemAlloc:1:2");
  CHECK_THROWS_WITH_AS(device->allocate_locked(size_t{2} << 20),
                       doctest::Contains("nothing can be freed while operations of NCCL's are under way"),
                       DeviceBusyError);
  CHECK(device->allocate_locked(1) != nullptr);
  CHECK(fake.calls("cuMemFree") == freed);
  held.let_go();
  device->end_waiting_for_peers();
  fake.fail("cuMemAlloc:1:2");
  CHECK(device->allocate_locked(size_t{2} << 20) != nullptr);
  CHECK(fake.calls("cuMemFree") == freed + 1);
}

TEST_CASE("cuda memory: nothing that is released is freed while work waits for peers, and is due then") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  Program program(fake);
  device->release(device->allocate(1000000));
  HeldStream held(fake, *device, program.stream());  // a free would not return
  const uint64_t freed = fake.calls("cuMemFree");
  CHECK_FALSE(device->is_freeing_due());
  device->begin_waiting_for_peers();
  device->free_released();
  CHECK(fake.calls("cuMemFree") == freed);
  CHECK(device->is_freeing_due());
  held.let_go();
  device->end_waiting_for_peers();
  device->free_released();
  CHECK(fake.calls("cuMemFree") == freed + 1);
  CHECK_FALSE(device->is_freeing_due());
}

TEST_CASE("cuda memory: nothing of a GPU that has been left is given back, and what is pinned stays so") {
  auto& fake = FakeCuda::get();
  const auto other = fake.device(0);
  auto device = fake.device(0);
  Program program(fake);
  PinnedPages pages = pinned_pages(*device, 4096);
  std::byte* const pinned = pages.get();
  std::byte* const data = device->allocate(100);
  device->release(data);
  const auto calls = [&] { return fake.calls("cuMemFree") + fake.calls("cuMemHostUnregister"); };
  const uint64_t before = calls();
  HeldStream held(fake, *other, program.stream());  // whatever waited for the GPU would not return
  device->leave();
  pages.reset();
  device->free_released();
  device.reset();
  CHECK(calls() == before);
  held.let_go();
  CHECK(fake.driver->mem_host_unregister(pinned) == cu::kSuccess);
  CHECK(fake.driver->mem_free(device_ptr(data)) == cu::kSuccess);
  pinned[0] = std::byte{1};  // the pages have not gone
  pages.reset(pinned);
  pages.get_deleter().device = nullptr;
}

TEST_CASE("cuda memory: what is not ours is not released, and a full GPU is said to be so") {
  auto& fake = FakeCuda::get();
  const auto device = fake.device(0);
  std::byte* const a = device->allocate(1);
  CHECK_THROWS_AS(device->release(a + 1), InvalidArgumentError);
  device->release(a);
  CHECK_THROWS_AS(device->release(a), InvalidArgumentError);
  const uint64_t freed = fake.calls("cuMemFree");
  fake.fail("cuMemAlloc:1:2");
  std::byte* const large = device->allocate(size_t{2} << 20);  // in the place of what was released
  CHECK(fake.calls("cuMemFree") == freed + 1);
  fake.fail("cuMemAlloc:1:2");
  CHECK_THROWS_WITH_AS(device->allocate(size_t{4} << 20), doctest::Contains("torch.cuda.empty_cache()"), InternalError);
  device->release(large);
  CHECK(device->allocate(1) != nullptr);  // nothing of it stays
}

}  // namespace
}  // namespace rr::test
