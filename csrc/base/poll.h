// Waiting for what rings no bell: a look, a nap, and so on.
#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace rr {

// Whether done() has come true before the deadline. nap: between two looks.
template <class Done>
bool poll_until(const Done& done, Deadline deadline, std::chrono::nanoseconds nap = std::chrono::milliseconds(1)) {
  while (!done()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(nap);
  }
  return true;
}

}  // namespace rr
