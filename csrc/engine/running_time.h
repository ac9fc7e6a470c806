// How long this process has run, which a limit of time is about: a batch system may suspend a job for hours, and Ctrl-Z
// does, without any rank being late.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/guarded.h"

namespace rr {

class RunningTime {
 public:
  // Several times a second, from any thread: where no thread has looked for longer than kPauseNs, none has run.
  void look(int64_t now_ns) { known_.lock()->look(now_ns); }

  // Of the time between the two moments, that without pauses: in nanoseconds, at least 0.
  int64_t ran_ns(int64_t since_ns, int64_t now_ns) {
    int64_t ran_ns = now_ns - since_ns;
    const auto known = known_.lock();
    known->look(now_ns);
    for (const Pause& pause : known->pauses)
      ran_ns -= std::max<int64_t>(0, std::min(now_ns, pause.end_ns) - std::max(since_ns, pause.begin_ns));
    return std::max<int64_t>(0, ran_ns);
  }
  double ran_s(int64_t since_ns, int64_t now_ns) { return static_cast<double>(ran_ns(since_ns, now_ns)) * 1e-9; }

 private:
  static constexpr int64_t kPauseNs = 1'000'000'000;  // the engine looks four times as often
  static constexpr size_t kPausesMost = 64;

  struct Pause {
    int64_t begin_ns, end_ns;
  };
  struct Known {
    int64_t looked_ns = 0;  // 0: never
    std::deque<Pause> pauses;

    void look(int64_t now_ns) {
      if (looked_ns != 0 && now_ns - looked_ns > kPauseNs) {
        pauses.push_back({looked_ns, now_ns});
        if (pauses.size() > kPausesMost) pauses.pop_front();
      }
      looked_ns = std::max(looked_ns, now_ns);
    }
  };
  Guarded<Known> known_;
};

}  // namespace rr
