// What a test says and waits for on any thread; doctest's macros stay on the main one.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/clock.h"

namespace rr::test {

inline void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error("expected: " + what);
}

// Gives way until the condition holds; 60 s at most. No wait of ours is for time: this is when a test gives up.
inline void wait_for(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after_s(60);
  while (!condition()) {
    expect(!deadline.passed(), "what the test waits for");
    std::this_thread::yield();
  }
}

}  // namespace rr::test
