// How a rank is noticed whose process has ended, or runs another program.
#include "engine/peer_watch.h"

#include <string>

#include "doctest/doctest.h"
#include "support/child.h"
#include "support/expect.h"

namespace rr::test {
namespace {

// The kernel closes the large file last, and tells the pidfd only then.
TEST_CASE("a rank whose end takes time has ended, and does not run another program") {
  const Fd memory = create_memfd("test", 4096);
  Fd large;
  Presence presence;
  Child rank([&] {
    constexpr size_t kNbytes = size_t{256} << 20;
    large = create_memfd("large", kNbytes);
    return ::posix_fallocate(large.get(), 0, kNbytes) == 0 && presence.hold(memory.get(), 1);
  });
  PeerWatch watch({-1, rank.pidfd()}, nullptr);
  REQUIRE(watch.hold(memory.get(), 0, [](int) { return true; }));
  watch.look();
  CHECK(watch.cause_of_death(1) == nullptr);
  rank.begin_to_end();
  wait_for([&] {
    watch.look();
    return watch.cause_of_death(1) != nullptr;
  });
  CHECK(std::string(watch.cause_of_death(1)) == kEndedWithoutShutdown);
}

}  // namespace
}  // namespace rr::test
