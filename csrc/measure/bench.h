// The loops behind `ringreduce bench --level c`: timing without an interpreter in between.
#pragma once

#include <vector>

#include "engine/group/group.h"

namespace rr {

struct BenchJob {
  Kind kind = Kind::kAllreduce;
  TensorView src;
  TensorView dst;
  Reduction reduction;
  int iters = 1;
  bool rewrite = false;  // rewrite src and meet in a barrier before every call, and time each call alone
};

// Seconds per call: iters values when rewriting, else one, the mean of iters back-to-back calls.
std::vector<double> bench(Group& group, const BenchJob& job, Interrupt interrupt);

}  // namespace rr
