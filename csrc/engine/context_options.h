// What a context is made with, beside its ranks: where its operations are recorded, and a plan of sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "recorder/recorder.h"

namespace rr {

// Where a context's operations are recorded, and what it is called there.
struct Recording {
  std::shared_ptr<Recorder> recorder;  // of the process; null: one of its own, that nobody reads
  std::string context;         // the same on all its ranks, and no other context's of the job; "": the job's own
  std::vector<int> job_ranks;  // by its ranks; empty: they are the job's
};

// Sizes that `ringreduce tune` has measured, from a plan file (ringreduce/plan.py). They are the same on all ranks.
struct TuningPlan {
  static constexpr uint64_t kUnusable = UINT64_MAX;  // this rank has a file that is no plan, or none for this job

  uint64_t hash = 0;        // of the file; 0: there is none
  size_t chunk_nbytes = 0;  // of the staging area
  size_t eager_nbytes = 0;  // 0 on several hosts, where the limit is part of what int8 and fp16 round
};

}  // namespace rr
