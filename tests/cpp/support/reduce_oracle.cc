// Apart from its header because it is compiled for every data type, which takes seconds, and most tests use it.
#include "support/reduce_oracle.h"

#include <functional>
#include <type_traits>

namespace rr_test {

float decode(HalfFormat format, uint16_t bits) {
  const int magnitude = bits & 0x7fff;
  const int exponent = magnitude >> format.mantissa_bits;
  int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  float value;
  if (magnitude >= format.infinity) {
    value = mantissa ? std::nanf("") : INFINITY;
  } else {
    if (exponent > 0) mantissa += 1 << format.mantissa_bits;
    value = static_cast<float>(
        std::ldexp(mantissa, std::max(exponent, 1) - 1 + format.lowest_exponent - format.mantissa_bits));
  }
  return bits & 0x8000 ? -value : value;
}

uint16_t encode(HalfFormat format, double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double x = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | format.infinity | 1 << (format.mantissa_bits - 1));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | format.infinity);
  const int exponent = x == 0 ? format.lowest_exponent : std::max(std::ilogb(x), format.lowest_exponent);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(x, format.mantissa_bits - exponent)));
  const int bits = steps + ((exponent - format.lowest_exponent) << format.mantissa_bits);
  return static_cast<uint16_t>(sign | std::min(bits, format.infinity));
}

namespace {

template <class C>
C floating(const Reduction& r, const std::vector<C>& xs) {
  C result = 0;
  for (size_t s = 0; s < xs.size(); ++s) {
    const volatile C x = xs[s] * static_cast<C>(r.prescale);  // volatile: the oracle must not contract into an FMA
    if (s == 0) {
      result = x;
    } else if (r.op == ReduceOp::kMin || r.op == ReduceOp::kMax) {
      const bool take = r.op == ReduceOp::kMin ? !(result < x) : !(result > x);
      if (!std::isnan(result) && (take || std::isnan(x))) result = x;
    } else {
      const volatile C folded = r.op == ReduceOp::kProduct ? result * x : result + x;
      result = folded;
    }
  }
  return result * static_cast<C>(r.postscale / (r.op == ReduceOp::kAverage ? r.divisor : 1));
}

template <class W, class Product>
W fold_numbers(ReduceOp op, W a, W b, Product product) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return product(a, b);
    default:
      return a + b;
  }
}

template <class T>
T clamped(double x) {
  double highest = static_cast<double>(std::numeric_limits<T>::max());
  if (sizeof(T) == 8) highest = std::nextafter(highest, 0.0);
  return static_cast<T>(std::clamp(std::trunc(x), static_cast<double>(std::numeric_limits<T>::lowest()), highest));
}

// Each input is scaled and truncated by itself. Only products of scaled inputs are taken in double, so that they clamp.
template <class T>
T integer(const Reduction& r, std::vector<T> xs) {
  using W = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  if (r.prescale != 1.0) {
    for (T& x : xs) x = clamped<T>(static_cast<double>(x) * r.prescale);
  }
  __int128 exact = xs[0];
  double product = static_cast<double>(xs[0]);
  for (size_t s = 1; s < xs.size(); ++s) {
    switch (r.op) {
      case ReduceOp::kLogicalAnd:
        exact = exact && xs[s];
        break;
      case ReduceOp::kLogicalOr:
        exact = exact || xs[s];
        break;
      case ReduceOp::kBitwiseAnd:
        exact &= xs[s];
        break;
      case ReduceOp::kBitwiseOr:
        exact |= xs[s];
        break;
      default:
        exact = static_cast<W>(fold_numbers<__int128>(r.op, exact, xs[s], [](auto a, auto b) {
          return static_cast<W>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
        }));
        product *= static_cast<double>(xs[s]);
    }
  }
  if (r.op == ReduceOp::kLogicalAnd || r.op == ReduceOp::kLogicalOr) exact = exact != 0;
  const int divisor = r.op == ReduceOp::kAverage ? r.divisor : 1;
  const bool is_exact = r.prescale == 1.0 || (sizeof(T) == 8 && r.op != ReduceOp::kProduct);
  if (is_exact && r.postscale == 1.0) return static_cast<T>(static_cast<W>(exact) / divisor);
  const bool in_double = r.op == ReduceOp::kProduct && r.prescale != 1.0;
  const double folded = in_double ? product : static_cast<double>(static_cast<W>(exact));
  return clamped<T>(folded * r.postscale / divisor);
}

uint8_t boolean(ReduceOp op, const std::vector<uint8_t>& xs) {
  const auto is_true = [](uint8_t x) { return x != 0; };
  const bool any =
      op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kLogicalOr || op == ReduceOp::kBitwiseOr;
  return any ? std::any_of(xs.begin(), xs.end(), is_true) : std::all_of(xs.begin(), xs.end(), is_true);
}

// The i-th element of every input, as T.
template <class T>
std::vector<T> column(const std::vector<Bytes>& inputs, size_t i) {
  std::vector<T> xs(inputs.size());
  for (size_t s = 0; s < xs.size(); ++s) xs[s] = load<T>(&inputs[s][i * sizeof(T)]);
  return xs;
}

void put_half(HalfFormat format, const Reduction& r, const std::vector<Bytes>& inputs, Bytes& out, size_t i) {
  std::vector<float> xs(inputs.size());
  for (size_t s = 0; s < xs.size(); ++s) xs[s] = decode(format, load<uint16_t>(&inputs[s][i * sizeof(uint16_t)]));
  put(out, i, encode(format, floating(r, xs)));
}

bool is_nan(DType dtype, const uint8_t* at) {
  switch (dtype) {
    case DType::kFloat16:
      return std::isnan(decode(kFp16, load<uint16_t>(at)));
    case DType::kBFloat16:
      return std::isnan(decode(kBf16, load<uint16_t>(at)));
    case DType::kFloat32:
      return std::isnan(load<float>(at));
    case DType::kFloat64:
      return std::isnan(load<double>(at));
    default:
      return false;
  }
}

}  // namespace

Bytes oracle(const Reduction& r, const std::vector<Bytes>& inputs) {
  Bytes out(inputs[0].size());
  for (size_t i = 0; i < out.size() / itemsize(r.dtype); ++i) {
    switch (r.dtype) {
      case DType::kFloat16:
        put_half(kFp16, r, inputs, out, i);
        break;
      case DType::kBFloat16:
        put_half(kBf16, r, inputs, out, i);
        break;
      case DType::kFloat32:
        put(out, i, floating(r, column<float>(inputs, i)));
        break;
      case DType::kFloat64:
        put(out, i, floating(r, column<double>(inputs, i)));
        break;
      case DType::kInt8:
        put(out, i, integer(r, column<int8_t>(inputs, i)));
        break;
      case DType::kInt16:
        put(out, i, integer(r, column<int16_t>(inputs, i)));
        break;
      case DType::kInt32:
        put(out, i, integer(r, column<int32_t>(inputs, i)));
        break;
      case DType::kInt64:
        put(out, i, integer(r, column<int64_t>(inputs, i)));
        break;
      case DType::kUInt8:
        put(out, i, integer(r, column<uint8_t>(inputs, i)));
        break;
      case DType::kUInt16:
        put(out, i, integer(r, column<uint16_t>(inputs, i)));
        break;
      case DType::kUInt32:
        put(out, i, integer(r, column<uint32_t>(inputs, i)));
        break;
      case DType::kUInt64:
        put(out, i, integer(r, column<uint64_t>(inputs, i)));
        break;
      case DType::kBool:
        put(out, i, boolean(r.op, column<uint8_t>(inputs, i)));
        break;
    }
  }
  return out;
}

bool same(DType dtype, const uint8_t* got, const uint8_t* want, size_t count) {
  const size_t n = itemsize(dtype);
  if (count == 0 || std::memcmp(got, want, count * n) == 0) return true;
  for (size_t i = 0; i < count * n; i += n) {
    if (std::memcmp(got + i, want + i, n) != 0 && !(is_nan(dtype, got + i) && is_nan(dtype, want + i))) return false;
  }
  return true;
}

}  // namespace rr_test
