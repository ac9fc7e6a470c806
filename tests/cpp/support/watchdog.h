// Ends a test that hangs: says what each rank was doing, in its own words, and aborts. Calls that wait are what is
// under test, so none of them ends it, and ctest's deadline tells nothing.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace rr::test {

class Watchdog {
 public:
  // title: of the test, with its seed. limit_s: without a word of any rank.
  Watchdog(int size, std::string title, double limit_s = 60)
      : title_(std::move(title)), limit_s_(limit_s), doing_(static_cast<size_t>(size), "starts") {
    thread_ = std::thread([this] { watch(); });
  }
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;

  // What rank r begins to do.
  void note(int r, std::string text) {
    const std::lock_guard lock(mutex_);
    doing_[static_cast<size_t>(r)] = std::move(text);
    ++notes_;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const uint64_t before = notes_;
      if (changed_.wait_for(lock, std::chrono::duration<double>(limit_s_), [this] { return is_over_; })) return;
      if (notes_ != before) continue;
      std::fprintf(stderr, "%s: no rank has moved for %.0f s\n", title_.c_str(), limit_s_);
      for (size_t r = 0; r < doing_.size(); ++r) std::fprintf(stderr, "  rank %zu: %s\n", r, doing_[r].c_str());
      std::abort();
    }
  }

  const std::string title_;
  const double limit_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> doing_;
  uint64_t notes_ = 0;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace rr::test
