// Of a wait, the time in which the process has run.
#include "engine/running_time.h"

#include "doctest/doctest.h"

namespace rr {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST_CASE("running time: pauses between two looks do not count, whichever part of them a wait has seen") {
  RunningTime running;
  for (int64_t at = 1; at <= 10; ++at) running.look(at * kSecond);
  CHECK(running.ran_ns(2 * kSecond, 10 * kSecond) == 8 * kSecond);
  running.look(1000 * kSecond);  // after a pause of 990 s
  running.look(1000 * kSecond + kSecond / 4);
  CHECK(running.ran_ns(2 * kSecond, 1001 * kSecond) == 9 * kSecond);
  CHECK(running.ran_ns(500 * kSecond, 1001 * kSecond) == kSecond);
  CHECK(running.ran_ns(1000 * kSecond + kSecond / 2, 1001 * kSecond) == kSecond / 2);
  CHECK(running.ran_ns(2 * kSecond, 2001 * kSecond) == 9 * kSecond);  // what asks is the first to look after a pause
  running.look(5 * kSecond);  // by a thread that had read the clock before the pauses
  CHECK(running.ran_s(2 * kSecond, 2002 * kSecond) == 10.0);
}

}  // namespace
}  // namespace rr
