// How long operations usually take that take long: a barrier behind which one rank evaluates the model for a minute, at
// the end of each epoch, is not worth a warning.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "planner/operation.h"

namespace rr {

class UsualWaits {
 public:
  // An operation under way is seen to be so old at `now`, in nanoseconds. Returns the age at which it is late: least_s,
  // or 20 times what each of the last three long ones of its kind and name had taken when they were seen last, and at
  // most a minute more than that.
  double late_after_s(const Operation& operation, double age_s, double least_s, int64_t now);

 private:
  static constexpr size_t kRemembered = 3;
  struct Waits {
    uint64_t number = 0;  // of the operation seen last
    double age_s = 0;     // of that operation
    int64_t seen_ns = 0;
    double ended_s[kRemembered] = {};  // of those before it; 0: there was none
  };

  std::mutex mutex_;
  std::unordered_map<std::string, Waits> waits_;  // by kind and name
};

}  // namespace rr
