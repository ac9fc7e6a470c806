// The one table of which operation means something for which dtype; everything else here reads it.
#include "data/reduction.h"

#include <string>

#include "base/errors.h"

namespace rr {
namespace {

enum NumberKind { kFloating, kInteger, kBoolean };

NumberKind number_kind(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return kFloating;
    case DType::kBool:
      return kBoolean;
    default:
      return kInteger;
  }
}

// What a pair computes: '+' arithmetic, scale factors allowed; 'x' without scale factors; '.' nothing.
// Integers: Average truncates toward zero, Sum and Product wrap around, logical results are 0 or 1.
// bool: Min, Product and the Ands are "all", Max, Sum and the Ors are "any".
constexpr char kMeaning[3][kOpCount + 1] = {
    // average, sum, adasum, min, max, product, logical_and, logical_or, bitwise_and, bitwise_or
    "++.+++....",  // float16, bfloat16, float32, float64
    "++.+++xxxx",  // int8 to int64, uint8 to uint64
    ".x.xxxxxxx",  // bool
};

char meaning(DType dtype, ReduceOp op) { return kMeaning[number_kind(dtype)][static_cast<int>(op)]; }

std::string meaningful_ops(DType dtype) {
  std::string text;
  for (int code = 0; code < kOpCount; ++code) {
    const auto op = static_cast<ReduceOp>(code);
    if (is_meaningful(dtype, op)) text += (text.empty() ? "" : ", ") + std::string(name(op));
  }
  return text;
}

bool has_factors(const Reduction& reduction) { return reduction.prescale != 1.0 || reduction.postscale != 1.0; }

}  // namespace

const char* name(ReduceOp op) {
  switch (op) {
#define RR_CASE(id, text) \
  case ReduceOp::id:      \
    return text;
    RR_OPS(RR_CASE)
#undef RR_CASE
  }
  return "?";
}

ReduceOp op_from_code(int code) {
  if (code < 0 || code >= kOpCount) {
    std::string text = "reduce operation code " + std::to_string(code) + " is unknown; the codes are";
    for (int i = 0; i < kOpCount; ++i) {
      text += (i ? ", " : " ") + std::to_string(i) + " (" + name(static_cast<ReduceOp>(i)) + ")";
    }
    throw InvalidArgumentError(text);
  }
  return static_cast<ReduceOp>(code);
}

bool is_meaningful(DType dtype, ReduceOp op) { return meaning(dtype, op) != '.'; }

bool is_scalable(DType dtype, ReduceOp op) { return meaning(dtype, op) == '+'; }

void check(const Reduction& reduction) {
  const std::string op = name(reduction.op);
  const std::string dtype = name(reduction.dtype);
  if (reduction.op == ReduceOp::kAdasum) {
    throw UnavailableError(
        "adasum is computed by ringreduce.torch and ringreduce.tensorflow, not here; use "
        "average or sum");
  }
  if (!is_meaningful(reduction.dtype, reduction.op)) {
    throw InvalidArgumentError(op + " has no meaning for " + dtype + "; " + dtype + " can be reduced with " +
                               meaningful_ops(reduction.dtype));
  }
  if (has_factors(reduction) && !is_scalable(reduction.dtype, reduction.op)) {
    throw InvalidArgumentError("prescale_factor and postscale_factor have no meaning for " + op + " of " + dtype +
                               "; leave both at 1.0");
  }
  if (reduction.op == ReduceOp::kAverage && reduction.divisor < 1) {
    throw InvalidArgumentError("average of " + dtype + " needs a divisor of at least 1, got " +
                               std::to_string(reduction.divisor));
  }
}

void check(Codec codec, const Reduction& reduction) {
  if (codec == Codec::kNone) return;
  const bool adds = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  const bool selects = reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kMax;
  if (reduction.dtype == DType::kFloat32 && (adds || (selects && codec != Codec::kInt8))) return;
  throw InvalidArgumentError("wire " + std::string(name(codec)) + " is for float32 with " +
                             (codec == Codec::kInt8 ? "sum and average" : "sum, average, min and max") + ", not for " +
                             name(reduction.op) + " of " + name(reduction.dtype) +
                             "; leave wire out, or convert the tensor");
}

bool foldable_in_place(const Reduction& reduction) {
  switch (number_kind(reduction.dtype)) {
    case kFloating:
      return itemsize(reduction.dtype) > 2;  // a 16-bit partial result would be rounded at every step
    case kInteger:                           // a partial result is not yet divided or scaled, so it may not fit
      return reduction.op != ReduceOp::kAverage && !has_factors(reduction);
    case kBoolean:
      return true;
  }
  return false;
}

}  // namespace rr
