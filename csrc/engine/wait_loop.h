// How the threads of a rank look for work, and sleep while there is none: blocked callers, and the engine.
#pragma once

#include <atomic>
#include <functional>

#include "base/clock.h"
#include "base/stats.h"
#include "engine/groups.h"
#include "engine/running_time.h"
#include "os/bell.h"
#include "transport/network.h"

namespace rr {

class WaitLoop {
 public:
  struct From {
    Groups& groups;
    const RankDevice& gpu;
    const Network& network;
    double spin_us;                   // a caller polls so long before it sleeps
    std::function<void()> housekeep;  // looks at deaths and deadlines, of all groups
  };
  explicit WaitLoop(From from) : from_(std::move(from)) {}

  // Asked before each sleep: whether what done() looks at may change without a ring, as what a leader reads of its
  // host's ranks does. Then the sleep is short. Empty: it never does.
  using IsUnrung = std::function<bool()>;
  // Blocks until done() is true: polls for a while, then sleeps; executes whatever there is to execute meanwhile.
  // False when the deadline passed first. tick() runs at least every 100 ms of sleep; done() and tick() may throw.
  bool wait_until(const std::function<bool()>& done, const std::function<bool()>& has_work, Deadline deadline,
                  Interrupt interrupt, bool crowded, const std::function<void()>& tick, const IsUnrung& is_unrung = {});
  void wake_engine() { ring(*engine_bell_); }
  // And an engine that naps while something is under way.
  void wake_callers() { ring(*wait_bell_); }
  RunningTime& running() { return running_; }

 private:
  friend class Context;
  // Of the world's segment. Before anything else is called.
  void use_world(const ControlSegment& control, int rank) {
    wait_bell_ = &control.wait_bell(rank);
    engine_bell_ = &control.engine_bell(rank);
    wait_line_ = &control.wait_line(rank);
    stats_ = &control.stats(rank);
  }
  // Sleeps on the engine bell while there is nothing to do, and like a waiting caller while an operation is under way;
  // never polls. Returns after stop().
  void run_engine();
  void stop();
  // Whether the engine has to look once a thread that has looked at the links goes. Always true with a reader.
  bool must_engine_look() const;

  class LinkWait;

  const From from_;
  Bell* wait_bell_ = nullptr;    // on which this rank's callers sleep
  Bell* engine_bell_ = nullptr;  // and its engine
  WaitLine* wait_line_ = nullptr;
  Stats* stats_ = nullptr;
  RunningTime running_;
  std::atomic<int64_t> unyielding_until_ns_{0};   // waits on links do not yield until then
  std::atomic<int> link_waits_{0};                // threads that wait and look at links
  std::atomic<bool> engine_leaves_links_{false};  // the engine sleeps: a waiting thread looks at them
  std::atomic<bool> stop_{false};
};

}  // namespace rr
