// Host memory that operations take and give back.
#include "collective/host_scratch.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/rounding.h"
#include "doctest/doctest.h"

namespace rr::test {

TEST_CASE("scratch: what was given back is taken again, also where less is wanted") {
  const size_t before = scratch_counts().used_nbytes;
  std::byte* first = nullptr;
  {
    const HostScratch block = take_scratch(5 << 20);
    first = block.get();
    CHECK(reinterpret_cast<uintptr_t>(first) % kCacheLine == 0);
    std::memset(first, 1, 5 << 20);
    CHECK(scratch_counts().used_nbytes >= before + (5 << 20));
  }
  CHECK(scratch_counts().used_nbytes == before);
  CHECK(take_scratch(5 << 20).get() == first);
  CHECK(take_scratch((4 << 20) + 1).get() == first);
  CHECK(take_scratch(0) != nullptr);
}

TEST_CASE("scratch: a small request takes no large block") {
  std::byte* large = nullptr;
  {
    const HostScratch block = take_scratch(64 << 20);
    large = block.get();
  }
  const HostScratch small = take_scratch(30 << 20);
  CHECK(small.get() != large);
  CHECK(take_scratch(33 << 20).get() == large);
  const ScratchCounts counts = scratch_counts();
  CHECK(counts.kept_nbytes >= 64 << 20);
}

TEST_CASE("scratch: no more is kept than twice what was once used at a time") {
  size_t most = 0;
  for (size_t mib = 128; mib <= 224; mib += 4) {  // more each time, and than other tests
    take_scratch(mib << 20);
    most = std::max(most, mib << 20);
    CHECK(scratch_counts().kept_nbytes <= 2 * most);
  }
  CHECK(scratch_counts().kept_nbytes >= most);
}

TEST_CASE("scratch: threads get memory of their own") {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 300; ++i) {
        const size_t nbytes = 1 + (i * 7919 + t * 104729) % 100000;
        const HostScratch block = take_scratch(nbytes);
        std::memset(block.get(), static_cast<int>(t), nbytes);
        std::this_thread::yield();
        for (size_t at = 0; at < nbytes; ++at) wrong[t] += block[at] != static_cast<std::byte>(t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

}  // namespace rr::test
