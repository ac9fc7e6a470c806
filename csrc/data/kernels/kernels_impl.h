// From a Reduction to a fold: the one body of all kernel sets. A file kernels_<isa>.cc defines kVectorBytes and
// Float16 (or includes kernels_fp16_integer.h), includes this, and puts `reduce` into its constant.
#pragma once

#include "data/kernels/floating_mode.h"
#include "data/kernels/kernels_fold.h"
#include "data/kernels/kernels_half.h"
#include "data/kernels/kernels_wide.h"
#include "data/reduction.h"

namespace rr {
namespace {

template <class F>
void reduce_floating(const Reduction& reduction, const Operands& operands) {
  using T = typename F::Element;
  const int divisor = reduction.op == ReduceOp::kAverage ? reduction.divisor : 1;
  const T prescale = static_cast<T>(reduction.prescale);
  const T postscale = static_cast<T>(reduction.postscale / divisor);
  const bool after = postscale != T(1);
  const bool both = prescale != T(1);
  const Scaled<T> scaled(prescale, postscale);
  switch (reduction.op) {
    case ReduceOp::kMin:
      return both || after ? fold<F, Min>(scaled, operands) : fold<F, Min>(AsIs{}, operands);
    case ReduceOp::kMax:
      return both || after ? fold<F, Max>(scaled, operands) : fold<F, Max>(AsIs{}, operands);
    case ReduceOp::kProduct:
      return both || after ? fold<F, Product>(scaled, operands) : fold<F, Product>(AsIs{}, operands);
    default:  // Sum and Average
      if (both) return fold<F, Sum>(scaled, operands);
      if (after) return fold_fast<F, Sum>(ScaledAfter<T>(postscale), operands);
      return fold_fast<F, Sum>(AsIs{}, operands);
  }
}

// Where the sign of the type makes no difference to the bits of the result: U is the unsigned type of its size.
template <class U>
void reduce_bits(ReduceOp op, const Operands& operands) {
  using F = Native<U>;
  switch (op) {
    case ReduceOp::kProduct:
      return fold<F, Product>(AsIs{}, operands);
    case ReduceOp::kLogicalAnd:
      return fold<F, And>(Truth{}, operands);
    case ReduceOp::kLogicalOr:
      return fold<F, Or>(Truth{}, operands);
    case ReduceOp::kBitwiseAnd:
      return fold<F, And>(AsIs{}, operands);
    case ReduceOp::kBitwiseOr:
      return fold<F, Or>(AsIs{}, operands);
    default:
      return fold_fast<F, Sum>(AsIs{}, operands);
  }
}

template <class T, class U>
void reduce_integer(const Reduction& reduction, const Operands& operands) {
  if (reduction.op == ReduceOp::kAverage || reduction.prescale != 1.0 || reduction.postscale != 1.0) {
    return fold_wide<T>(reduction, operands);
  }
  if (reduction.op == ReduceOp::kMin) return fold<Native<T>, Min>(AsIs{}, operands);
  if (reduction.op == ReduceOp::kMax) return fold<Native<T>, Max>(AsIs{}, operands);
  reduce_bits<U>(reduction.op, operands);
}

void reduce_bool(ReduceOp op, const Operands& operands) {
  const bool all =
      op == ReduceOp::kMin || op == ReduceOp::kProduct || op == ReduceOp::kLogicalAnd || op == ReduceOp::kBitwiseAnd;
  reduce_bits<uint8_t>(all ? ReduceOp::kLogicalAnd : ReduceOp::kLogicalOr, operands);
}

void reduce(const Reduction& reduction, const void* const* srcs, size_t nsrc, void* const* dsts, size_t ndst,
            size_t count) {
  const FloatingMode mode;
  const Operands operands{srcs, nsrc, dsts, ndst, count};
  switch (reduction.dtype) {
    case DType::kFloat16:
      return reduce_floating<Float16>(reduction, operands);
    case DType::kBFloat16:
      return reduce_floating<BFloat16>(reduction, operands);
    case DType::kFloat32:
      return reduce_floating<Native<float>>(reduction, operands);
    case DType::kFloat64:
      return reduce_floating<Native<double>>(reduction, operands);
    case DType::kInt8:
      return reduce_integer<int8_t, uint8_t>(reduction, operands);
    case DType::kInt16:
      return reduce_integer<int16_t, uint16_t>(reduction, operands);
    case DType::kInt32:
      return reduce_integer<int32_t, uint32_t>(reduction, operands);
    case DType::kInt64:
      return reduce_integer<int64_t, uint64_t>(reduction, operands);
    case DType::kUInt8:
      return reduce_integer<uint8_t, uint8_t>(reduction, operands);
    case DType::kUInt16:
      return reduce_integer<uint16_t, uint16_t>(reduction, operands);
    case DType::kUInt32:
      return reduce_integer<uint32_t, uint32_t>(reduction, operands);
    case DType::kUInt64:
      return reduce_integer<uint64_t, uint64_t>(reduction, operands);
    case DType::kBool:
      return reduce_bool(reduction.op, operands);
  }
}

void reduce_to_float(const Reduction& reduction, const void* const* srcs, size_t nsrc, void* dst, size_t count) {
  const FloatingMode mode;
  reduce_floating<ToFloat<Float16>>(reduction, Operands{srcs, nsrc, &dst, 1, count});
}

}  // namespace
}  // namespace rr
