// What an all-reduce computes: reduce operations, which (dtype, op) pairs mean something, and the kernels' interface.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "data/codec.h"
#include "data/dtype.h"

namespace rr {

// The first six are Horovod's numbers. X(enumerator, name)
#define RR_OPS(X)               \
  X(kAverage, "average")        \
  X(kSum, "sum")                \
  X(kAdasum, "adasum")          \
  X(kMin, "min")                \
  X(kMax, "max")                \
  X(kProduct, "product")        \
  X(kLogicalAnd, "logical_and") \
  X(kLogicalOr, "logical_or")   \
  X(kBitwiseAnd, "bitwise_and") \
  X(kBitwiseOr, "bitwise_or")

enum class ReduceOp : uint8_t {
#define RR_ENUMERATOR(id, name) id,
  RR_OPS(RR_ENUMERATOR)
#undef RR_ENUMERATOR
};

inline constexpr int kOpCount = 0
#define RR_COUNT(id, name) +1
    RR_OPS(RR_COUNT)
#undef RR_COUNT
    ;

const char* name(ReduceOp op);
ReduceOp op_from_code(int code);  // throws InvalidArgumentError

// result = postscale * fold(prescale * x_0, prescale * x_1, ...), for kAverage divided by divisor as well.
struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int divisor = 1;  // kAverage: the group's size (joined ranks included)
};

// The table of reduction.cc: does the pair compute something, and does it take prescale and postscale.
bool is_meaningful(DType dtype, ReduceOp op);
bool is_scalable(DType dtype, ReduceOp op);

// Throws InvalidArgumentError for a pair without a meaning (or scale factors on bool / logical / bitwise operations),
// naming both and the alternatives; UnavailableError for Adasum.
void check(const Reduction& reduction);

// Throws InvalidArgumentError for a codec that this all-reduce cannot travel in: all but kNone are for float32, with
// Sum and Average; those that keep the order of elements, which kInt8 does not, with Min and Max as well.
void check(Codec codec, const Reduction& reduction);

// True when folding partial results pairwise gives the same value up to floating-point rounding without a wider
// accumulator: what ring and recursive doubling need. False for float16, bfloat16, and integers with Average or with
// factors.
bool foldable_in_place(const Reduction& reduction);

enum class Isa : uint8_t { kPortable, kX86_64_v2, kAvx2, kAvx512 };

// One set of CPU kernels, compiled for one instruction set. Every set gives the same bits; only the sign and payload of
// a NaN are left open. Thread-safe, holds no state.
struct Kernels {
  Isa isa;
  const char* name;  // "portable", "x86-64-v2", "avx2", "avx512": the values of RINGREDUCE_ISA

  // dsts[d][i] = postscale * fold over s in index order of (prescale * srcs[s][i]), i < count, for every d.
  // nsrc >= 1, ndst >= 1. A dst may be exactly one of the srcs; otherwise nothing overlaps. Any alignment.
  // The reduction has passed check(). Memory beyond the operands is not touched.
  // Floating point: fp16 and bf16 accumulate in fp32 and round once, to nearest even; float32 and they multiply by
  // float(prescale) before the fold and by one float(postscale / divisor) after it, float64 likewise in double; a
  // factor of 1 does nothing; Min and Max of anything and a NaN are NaN. Integer Sum and Product wrap around. Integer
  // Average, or factors: when prescale is not 1 each input is multiplied in double and truncated to the type; what is
  // folded then is exact in 64 bits, but for a Product of scaled ones, in double; the result is multiplied by postscale
  // and divided by divisor in double, one of 64 bits without postscale as an integer. Truncating is toward zero, and
  // clamps to the type's range.
  void (*reduce)(const Reduction& reduction, const void* const* srcs, size_t nsrc, void* const* dsts, size_t ndst,
                 size_t count);

  // The same of float16, with one result, which stays float32: it is not rounded. dst is not one of the srcs.
  void (*reduce_to_float)(const Reduction& reduction, const void* const* srcs, size_t nsrc, void* dst, size_t count);

  // count float32 elements to codec_nbytes(codec, count) bytes, and back. Nothing overlaps. Any alignment. Memory
  // beyond the operands is not touched.
  void (*encode)(Codec codec, const void* src, std::byte* dst, size_t count);
  void (*decode)(Codec codec, const std::byte* src, void* dst, size_t count);
};

const Kernels& kernels(Isa isa);                // throws UnavailableError when this machine cannot run it
const Kernels& kernels(std::string_view name);  // "auto" = the best; InvalidArgumentError for an unknown name
std::vector<Isa> available_isas();              // best first; never empty

// count float32 elements become what they are when they have gone through a codec. Any alignment.
void codec_round_trip(const Kernels& kernels, Codec codec, void* elements, size_t count);

}  // namespace rr
