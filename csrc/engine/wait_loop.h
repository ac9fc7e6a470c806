// How the threads of a rank look for work, and sleep while there is none: blocked callers, and the engine.
#pragma once

#include <atomic>
#include <functional>

#include "base/clock.h"
#include "base/stats.h"
#include "engine/groups.h"
#include "os/bell.h"
#include "transport/network.h"

namespace rr {

class WaitLoop {
 public:
  struct From {
    Groups& groups;
    const RankDevice& gpu;
    const Network& network;
    Stats& stats;
    double spin_us;                   // a caller polls so long before it sleeps
    std::function<void()> housekeep;  // looks at deaths and deadlines, of all groups
  };
  explicit WaitLoop(From from) : from_(std::move(from)) {}

  // Blocks until done() is true: polls for a while, then sleeps; executes whatever there is to execute meanwhile.
  // False when the deadline passed first. tick() runs at least every 100 ms of sleep; done() and tick() may throw.
  bool wait_until(const std::function<bool()>& done, const std::function<bool()>& has_work, Deadline deadline,
                  Interrupt interrupt, bool crowded, const std::function<void()>& tick);
  void wake_engine() { ring(*engine_bell_); }
  void wake_callers() { ring(*wait_bell_); }

 private:
  friend class Context;
  // This rank's: on which its callers sleep, and its engine. Before anything else is called.
  void set_bells(Bell& wait, Bell& engine, WaitLine& line) {
    wait_bell_ = &wait;
    engine_bell_ = &engine;
    wait_line_ = &line;
  }
  // Sleeps on the engine bell while there is nothing to do, and like a waiting caller while an operation is under way;
  // never polls. Returns after stop().
  void run_engine();
  void stop();

  class BulkWait;

  const From from_;
  Bell* wait_bell_ = nullptr;
  Bell* engine_bell_ = nullptr;
  WaitLine* wait_line_ = nullptr;
  std::atomic<int64_t> unyielding_until_ns_{0};   // waits on links do not yield until then
  std::atomic<int> bulk_waits_{0};                // threads that look at links, and wait for many bytes
  std::atomic<bool> engine_leaves_links_{false};  // the engine sleeps: a waiting thread looks at them
  std::atomic<bool> stop_{false};
};

}  // namespace rr
