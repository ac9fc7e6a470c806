// What the ranks of a process have in common: where their work runs, what it is to fail with, what has been counted.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "fake_nccl.h"
#include "gpu/nccl/nccl.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_nccl {

struct Failure {
  int rank = -1;
  int operation = 0;
  int code = 0;
};

struct Process {
  std::mutex mutex;
  FakeNcclHooks hooks = {};
  bool has_hooks = false;
  std::vector<Failure> failures;
  FakeNcclCounts counts = {};
  std::atomic<bool> abort_blocks{false};
};
Process& process();

// Counts a call that NCCL does not allow, and says so.
rr::NcclResult misuse(const std::string& text);
// Where the host finds device memory.
void* memory(const void* address);
// Runs action(argument) in the stream's turn until it is true, then free(argument).
void enqueue(void* device, void* stream, bool (*action)(void*), void (*free)(void*), void* argument);
// FAKE_NCCL_FAIL, if it is set.
void read_failures();
// What a rank's communicator says once it has been asked for `executed` groups of calls.
rr::NcclResult failure_of(int rank, int executed);
rr::NcclResult failure_of_calls(int rank);  // what its calls in a group say

}  // namespace fake_nccl
