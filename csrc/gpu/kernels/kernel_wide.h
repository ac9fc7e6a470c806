// Integer Average and integers with factors: folded in a type wider than the elements, then divided.
#pragma once

#include <cmath>

#include "gpu/kernels/kernel_fold.h"

namespace rr::kernel {

// The ends of T in double: the nearest values that convert back without overflow.
template <class T>
struct Ends {
  static constexpr bool kSigned = T(-1) < T(0);
  static constexpr int kBits = 8 * static_cast<int>(sizeof(T)) - (kSigned ? 1 : 0);
  static constexpr double kLowest = kSigned ? -2.0 * static_cast<double>(uint64_t{1} << (kBits - 1)) : 0.0;
  static constexpr double kHighest = kBits == 64   ? 0x1.fffffffffffffp63
                                     : kBits == 63 ? 0x1.fffffffffffffp62
                                                   : static_cast<double>((uint64_t{1} << (kBits % 63)) - 1);
};

template <class T>
RR_HD T truncated(double x) {
  const double above = x >= Ends<T>::kLowest ? x : Ends<T>::kLowest;  // a NaN is not above
  return static_cast<T>(above <= Ends<T>::kHighest ? above : Ends<T>::kHighest);
}

// W is double where that is exact enough, and for products of scaled elements (data/kernels/kernels_wide.h), else 64
// bits.
template <class T, class W>
struct WideRule {
  static constexpr unsigned kNbytes = sizeof(T);
  static constexpr unsigned kElements = kGroupNbytes / kNbytes;
  static constexpr unsigned kAtOnce = 1, kBlocks = kWideBlocks;
  static constexpr bool kExact = W(1) / W(2) == W(0);
  using U = Unsigned<kNbytes>;
  struct Part {
    W at[kElements];
  };
  double prescale, postscale;
  int32_t divisor;
  FoldOp op;

  RR_HD explicit WideRule(const TableHead& head)
      : prescale(head.prescale), postscale(head.postscale), divisor(head.divisor), op(head.op) {}

  RR_HD Part begin(const Words<kGroupNbytes>& group) const {
    Part part;
    RR_UNROLL
    for (unsigned j = 0; j < kElements; ++j) {
      part.at[j] = static_cast<W>(bits_as<T>(get<U>(group, j)));
      if constexpr (!kExact) part.at[j] = scaled(part.at[j]);
      if constexpr (kExact && kNbytes == 8) {  // shorter types are folded in 64 bits for products without prescale only
        if (prescale != 1.0) part.at[j] = static_cast<W>(truncated<T>(static_cast<double>(part.at[j]) * prescale));
      }
    }
    return part;
  }
  RR_HD void add(Part& part, const Words<kGroupNbytes>& group) const {
    const Part next = begin(group);
    RR_UNROLL
    for (unsigned j = 0; j < kElements; ++j) {
      const W a = part.at[j], b = next.at[j];
      part.at[j] = op == kMin       ? (a < b ? a : b)
                   : op == kMax     ? (a > b ? a : b)
                   : op == kProduct ? times(a, b)
                                    : plus(a, b);
    }
  }
  RR_HD Words<kGroupNbytes> end(const Part& part) const {
    Words<kGroupNbytes> words{};
    RR_UNROLL
    for (unsigned j = 0; j < kElements; ++j) put<U>(words, j, static_cast<U>(finished(part.at[j])));
    return words;
  }

 private:
  // truncated<T>() that stays in double: it takes fewer registers, and the kernels for int8 hold 16 elements at once.
  RR_HD double scaled(double x) const { return fmin(fmax(trunc(x * prescale), Ends<T>::kLowest), Ends<T>::kHighest); }
  RR_HD T finished(W x) const {
    if constexpr (kExact && kNbytes == 8) {
      if (postscale == 1.0) return static_cast<T>(x / static_cast<W>(divisor));
    }
    return truncated<T>(static_cast<double>(x) * postscale / static_cast<double>(divisor));
  }
  // Integers wrap around.
  static RR_HD W plus(W a, W b) {
    if constexpr (kExact) {
      return static_cast<W>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  static RR_HD W times(W a, W b) {
    if constexpr (kExact) {
      return static_cast<W>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

}  // namespace rr::kernel
