// What a test says and waits for on any thread; doctest's macros stay on the main one.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>

#include "base/clock.h"

namespace rr::test {

inline void expect(bool ok, std::string_view what) {
  if (!ok) throw std::runtime_error("expected: " + std::string(what));
}

// what() makes the text where it is wanted: a text for each of a million elements takes seconds under a sanitizer.
template <class What, class = std::enable_if_t<std::is_invocable_v<What>>>
void expect(bool ok, const What& what) {
  if (!ok) expect(false, what());
}

// Gives way until the condition holds; 60 s at most. No wait of ours is for time: this is when a test gives up. A wait
// that goes on sleeps between its looks: three quarters of the CPU time of all C++ tests were such yields (2 cores).
template <class Condition>
void wait_for(const Condition& condition) {
  constexpr int64_t kYieldNs = 200'000;
  const int64_t begin_ns = now_ns();
  const Deadline deadline = Deadline::after_s(60);
  while (!condition()) {
    expect(!deadline.passed(), "what the test waits for");
    if (now_ns() - begin_ns < kYieldNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

}  // namespace rr::test
