// Turns counts of the processor's cycles into times of CLOCK_MONOTONIC, by looks at both: between two looks on a line
// through them. The kernel steers its clock, so the line is good for a fraction of a second, not for a run.
#pragma once

#include <cstdint>

namespace rr {

class CycleTimes {
 public:
  CycleTimes() : from_(look()), to_(from_) {}
  // Another look. What is turned into a time afterwards should have been counted shortly before it.
  void update();
  int64_t ns(int64_t cycles) const;
  // Nanoseconds of a cycle by the last two looks; 0 before there have been two.
  double rate() const;

 private:
  struct Look {
    int64_t cycles;
    int64_t ns;
  };
  static Look look();

  Look from_;
  Look to_;
};

}  // namespace rr
