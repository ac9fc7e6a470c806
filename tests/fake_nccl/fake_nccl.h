// What a test in the same process may ask of the fake NCCL. Processes set it up by environment variables:
//   FAKE_NCCL_DIR    folder through which the ranks exchange their data; must be there
//   FAKE_NCCL_FAIL   "RANK:OPERATION:CODE": what asking that rank's communicators for errors gives from its operation
//                    number OPERATION on (0: while it is being made)
#pragma once

#include <cstddef>

extern "C" {

// Where actions run. Without hooks: on the CUDA streams of the library RINGREDUCE_CUDA_LIBRARY.
struct FakeNcclHooks {
  void* (*device)();  // the calling thread's current one; null: there is none, which is an error
  void* (*memory)(const void* address);
  // Runs action(argument) in the stream's turn until it is true, then free(argument).
  void (*enqueue)(void* device, void* stream, bool (*action)(void*), void (*free)(void*), void* argument);
};

struct FakeNcclCounts {
  int communicators;  // that have not ended
  int made;
  int shrunk;
  int aborted;
  int open_groups;  // of all threads, not ended
  int groups;       // ncclGroupEnd with calls
  int calls;        // in them
  int operations;   // of ncclRedOpCreatePreMulSum that have not been destroyed
  int misuses;      // calls that NCCL does not allow; each is also told to stderr
};

void fake_nccl_hooks(const FakeNcclHooks* hooks);  // also forgets counts and failures
// operation -1: calls in a group give it instead.
void fake_nccl_fail(int rank, int operation, int code);
void fake_nccl_block_abort(bool blocks);  // ncclCommAbort does not return while it does
FakeNcclCounts fake_nccl_counts();
}
