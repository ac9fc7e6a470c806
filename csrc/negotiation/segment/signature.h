// What a rank says of an operation before any data moves, and what the ranks' requests amount to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/reduction.h"
#include "gpu/device.h"
#include "os/segments.h"

namespace rr {

// X(enumerator, NAME as in error texts, name)
#define RR_KINDS(X)                                   \
  X(kAllreduce, "ALLREDUCE", "allreduce")             \
  X(kAllgather, "ALLGATHER", "allgather")             \
  X(kBroadcast, "BROADCAST", "broadcast")             \
  X(kAlltoall, "ALLTOALL", "alltoall")                \
  X(kReduceScatter, "REDUCESCATTER", "reducescatter") \
  X(kReduce, "REDUCE", "reduce")                      \
  X(kGather, "GATHER", "gather")                      \
  X(kScatter, "SCATTER", "scatter")                   \
  X(kBarrier, "BARRIER", "barrier")

enum class Kind : uint8_t {
#define RR_ENUMERATOR(id, upper, lower) id,
  RR_KINDS(RR_ENUMERATOR)
#undef RR_ENUMERATOR
};

const char* upper_name(Kind kind);
const char* name(Kind kind);

inline constexpr size_t kDims = 5;

enum DeviceCan : uint8_t {
  kCanExport = 1,  // other processes can map all operands
  kCanNccl = 2,
  kCanMpi = 4,     // MPI takes their addresses
  kNcclKnows = 8,  // it is one of the operations that NCCL does as reduction.h says
};

// Plain data, written by one rank into shared memory and read by the others.
struct Signature {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  uint8_t ndim = 0;
  int32_t root = -1;
  uint32_t tensors = 1;  // of a grouped operation
  uint8_t is_async = 0;  // not compared: wakes this rank's engine
  Codec codec = Codec::kNone;
  Place place = Place::kHost;
  uint8_t can = 0;  // not compared: what the operands on this rank's GPU allow, a set of DeviceCan
  double prescale = 1.0;
  double postscale = 1.0;
  uint64_t nbytes = 0;        // this rank's input
  uint64_t dims[kDims] = {};  // with more, the last is a hash of the rest; grouped: hash of all shapes
  MemoryRef src;              // on a GPU: uid is gpu_key() of it, and of NCCL_HOSTID
  MemoryRef dst;
};
static_assert(sizeof(Signature) == 128);

// Equal for the same GPU; not 0.
uint64_t gpu_key(const DeviceId& id);

// Whether both say the same factors, to the bit: the sign of a zero is that of results, which are the same on all
// ranks.
bool have_same_factors(const Signature& a, const Signature& b);

// What an all-reduce over so many ranks computes.
inline Reduction reduction_of(const Signature& s, int size) { return {s.dtype, s.op, s.prescale, s.postscale, size}; }

// Number of elements of the whole input.
uint64_t count(const Signature& signature);

// Kinds that can read the others' inputs straight from registered memory.
constexpr bool can_be_direct(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduceScatter || kind == Kind::kAllgather ||
         kind == Kind::kGather || kind == Kind::kBroadcast || kind == Kind::kAlltoall;
}
// True when the first dimension may differ between ranks.
constexpr bool is_ragged(Kind kind) {
  return kind == Kind::kAllgather || kind == Kind::kGather || kind == Kind::kAlltoall;
}

// Equal digests stand for signatures that agree in all that must agree.
uint64_t digest(const Signature& signature);

// The first disagreement, in Horovod's words, naming the ranks and both sides; "" when all agree.
// Rank ranks[i] has announced requests[i]; ranks are the world's.
std::string describe_mismatch(const std::vector<Signature>& requests, const std::vector<int>& ranks);

}  // namespace rr
