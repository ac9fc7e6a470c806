// Integer Average and integers with factors: each tile is folded in a type wider than its elements, then divided.
// Plain loops that the compiler vectorises; every source is read once and every destination written once.
#pragma once

#include "data/kernels/kernels_fold.h"

namespace rr {
namespace {

constexpr size_t kTile = 512;  // elements: two tiles of 8 bytes fit in a quarter of a 32 KiB L1

template <bool kSigned>
struct Wide {
  using type = uint64_t;
};
template <>
struct Wide<true> {
  using type = int64_t;
};

// The ends of T in double: the nearest values that convert back without overflow.
template <class T>
struct Range {
  static constexpr bool kSigned = T(-1) < T(0);
  static constexpr int kBits = 8 * static_cast<int>(sizeof(T));
  static constexpr double kLowest = kSigned ? -static_cast<double>(uint64_t{1} << (kBits - 1)) : 0.0;
  static constexpr double kHighest = kBits < 64 ? static_cast<double>((uint64_t{1} << (kBits - kSigned)) - 1)
                                     : kSigned  ? 0x1.fffffffffffffp62
                                                : 0x1.fffffffffffffp63;
};

template <class T>
[[gnu::always_inline]] inline T truncated(double x) {
  const double above = x >= Range<T>::kLowest ? x : Range<T>::kLowest;  // a NaN is not above
  return static_cast<T>(above <= Range<T>::kHighest ? above : Range<T>::kHighest);
}

[[gnu::always_inline]] inline double add(double a, double b) { return a + b; }
[[gnu::always_inline]] inline double multiply(double a, double b) { return a * b; }
template <class W>  // integers wrap around
[[gnu::always_inline]] inline W add(W a, W b) {
  return static_cast<W>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <class W>
[[gnu::always_inline]] inline W multiply(W a, W b) {
  return static_cast<W>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

template <class T, class W>
[[gnu::always_inline]] inline void load_tile(W* tile, const char* from, size_t n, double prescale) {
  for (size_t i = 0; i < n; ++i) {
    T x;
    __builtin_memcpy(&x, from + i * sizeof(T), sizeof(T));
    tile[i] = static_cast<W>(x);
  }
  if (prescale == 1.0) return;
  // Back in T before the sum, as Horovod's ScaleBuffer has it.
  for (size_t i = 0; i < n; ++i) tile[i] = static_cast<W>(truncated<T>(static_cast<double>(tile[i]) * prescale));
}

template <class W>
[[gnu::always_inline]] inline void fold_tile(ReduceOp op, W* tile, const W* with, size_t n) {
  switch (op) {
    case ReduceOp::kMin:
      for (size_t i = 0; i < n; ++i) tile[i] = tile[i] < with[i] ? tile[i] : with[i];
      return;
    case ReduceOp::kMax:
      for (size_t i = 0; i < n; ++i) tile[i] = tile[i] > with[i] ? tile[i] : with[i];
      return;
    case ReduceOp::kProduct:
      for (size_t i = 0; i < n; ++i) tile[i] = multiply(tile[i], with[i]);
      return;
    default:
      for (size_t i = 0; i < n; ++i) tile[i] = add(tile[i], with[i]);
  }
}

template <class T, class W>
[[gnu::always_inline]] inline void finish_tile(T* results, const W* tile, size_t n, double postscale, int divisor) {
  constexpr bool kExact = W(1) / W(2) == W(0);
  if (kExact && postscale == 1.0) {
    for (size_t i = 0; i < n; ++i) results[i] = static_cast<T>(tile[i] / static_cast<W>(divisor));
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    results[i] = truncated<T>(static_cast<double>(tile[i]) * postscale / static_cast<double>(divisor));
  }
}

template <class T, class W>
void fold_wide_in(const Reduction& reduction, const Operands& operands) {
  const ReduceOp op = reduction.op;
  const int divisor = op == ReduceOp::kAverage ? reduction.divisor : 1;
  W tile[kTile];
  W next[kTile];
  T results[kTile];
  for (size_t done = 0; done < operands.count; done += kTile) {
    const size_t left = operands.count - done;
    const size_t n = left < kTile ? left : kTile;
    const size_t offset = done * sizeof(T);
    load_tile<T>(tile, static_cast<const char*>(operands.srcs[0]) + offset, n, reduction.prescale);
    for (size_t s = 1; s < operands.nsrc; ++s) {
      load_tile<T>(next, static_cast<const char*>(operands.srcs[s]) + offset, n, reduction.prescale);
      fold_tile(op, tile, next, n);
    }
    finish_tile(results, tile, n, reduction.postscale, divisor);
    for (size_t d = 0; d < operands.ndst; ++d) {
      __builtin_memcpy(static_cast<char*>(operands.dsts[d]) + offset, results, n * sizeof(T));
    }
  }
}

// double holds every sum of up to 2^21 integers of 32 bits exactly, and it vectorises; 64 bits are for all the rest.
// Products of scaled integers are clamped to the type's range, which takes a double.
template <class T>
void fold_wide(const Reduction& reduction, const Operands& operands) {
  using Exact = typename Wide<(T(-1) < T(0))>::type;
  const bool in_double = reduction.op == ReduceOp::kProduct ? reduction.prescale != 1.0 : sizeof(T) <= 4;
  if (in_double) {
    fold_wide_in<T, double>(reduction, operands);
  } else {
    fold_wide_in<T, Exact>(reduction, operands);
  }
}

}  // namespace
}  // namespace rr
