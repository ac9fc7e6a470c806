// The calls as a table of C functions, for kernels that are in another shared object: plain structs, opaque results.
//
// The other object is built with this one, but may be loaded beside an older one; so it compares version and nbytes
// first. No exception crosses this line. calls.h has the C++ side.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct RrTensor {
  void* data;
  const int64_t* dims;
  int32_t ndim;
  int32_t dtype;  // code of the core
};

struct RrCall {  // rr::Call
  int32_t kind;
  int32_t process_set;
  int32_t op;
  int32_t root_rank;  // -1 = none
  double prescale;
  double postscale;
  const char* name;       // "" = none
  const int64_t* splits;  // of splits_count
  int64_t splits_count;   // -1 = equal parts
  const RrTensor* srcs;
  const RrTensor* dsts;
  size_t srcs_count;
  size_t dsts_count;
};

enum RrQuestion : int32_t { kRrRank, kRrSize, kRrLocalRank, kRrLocalSize, kRrIncluded, kRrGroupRank, kRrJoin };

struct RrOutcome;  // of one call of run() or ask(), until release()

struct RrTable {
  uint32_t version;
  uint32_t nbytes;  // of this struct
  void* state;
  // Never null, but where there is no memory for it.
  RrOutcome* (*run)(void* state, const RrCall* calls, size_t count);
  RrOutcome* (*ask)(void* state, RrQuestion question, int32_t process_set);
  int32_t (*error)(const RrOutcome*);     // an ErrorCode, or kRrInterrupted; 0 = all went well
  const char* (*text)(const RrOutcome*);  // of the error
  int64_t (*answer)(const RrOutcome*);    // of ask()
  // First dimensions by group rank of allgather and alltoall.
  const uint64_t* (*counts)(const RrOutcome*, size_t call, size_t* length);
  // What the operation has allocated: the caller's from here on, until free_output(). Null where there is nothing.
  void* (*take_output)(RrOutcome*, size_t call, size_t* nbytes);
  void (*free_output)(void* output);
  void (*release)(RrOutcome*);
};

constexpr uint32_t kRrTableVersion = 2;
// A signal has ended a wait. The operations stand: the outcome and the memory of the tensors are to be kept for ever.
constexpr int32_t kRrInterrupted = -1;

}  // extern "C"
