// The fold: one pass that reads every source once and writes every destination once; partial results stay in registers.
#pragma once

#include "data/kernels_ops.h"

namespace rr {
namespace {

struct Operands {
  const void* const* srcs;
  size_t nsrc;
  void* const* dsts;
  size_t ndst;
  size_t count;
};

// The pointers of one side: their own copy where the number is known (a store through one of them could otherwise
// change them, for all the compiler knows), the caller's array where it is not (kFixed = 0).
template <class P, size_t kFixed>
struct Pointers {
  P at[kFixed];
  Pointers(const P* from, size_t) {
    for (size_t i = 0; i < kFixed; ++i) at[i] = from[i];
  }
  static constexpr size_t size() { return kFixed; }
};
template <class P>
struct Pointers<P, 0> {
  const P* at;
  size_t n;
  Pointers(const P* from, size_t size) : at(from), n(size) {}
  size_t size() const { return n; }
};

// kVectors vectors at a byte offset; or one vector of which only the first `part` bytes exist (part > 0). All loads come
// before all stores, so a destination may be a source.
template <class F, class Combine, size_t kVectors, class Stages, class Srcs, class Dsts>
[[gnu::always_inline]] inline void fold_block(const Stages& stages, const Srcs& srcs, const Dsts& dsts, size_t offset,
                                              size_t part) {
  const auto load = [&](size_t s, size_t v) __attribute__((always_inline)) {
    const char* from = static_cast<const char*>(srcs.at[s]) + offset + v * F::kBytes;
    return stages.before(part ? load_part<F>(from, part) : F::load(from));
  };
  typename F::Type folded[kVectors];
#pragma GCC unroll 16
  for (size_t v = 0; v < kVectors; ++v) folded[v] = load(0, v);
  for (size_t s = 1; s < srcs.size(); ++s) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) folded[v] = Combine::fold(folded[v], load(s, v));
  }
#pragma GCC unroll 16
  for (size_t v = 0; v < kVectors; ++v) folded[v] = stages.after(folded[v]);
  for (size_t d = 0; d < dsts.size(); ++d) {
    char* to = static_cast<char*>(dsts.at[d]) + offset;
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      if (part) {
        store_part<F>(to, folded[v], part);
      } else {
        F::store(to + v * F::kBytes, folded[v]);
      }
    }
  }
}

template <class F, class Combine, size_t kSources, size_t kDestinations, class Stages>
void fold_shape(const Stages& given, const Operands& operands) {
  const Stages stages = given;  // in registers: the stores below cannot change it
  const Pointers<const void*, kSources> srcs(operands.srcs, operands.nsrc);
  const Pointers<void*, kDestinations> dsts(operands.dsts, operands.ndst);
  const size_t nbytes = operands.count * F::kElementBytes;
  constexpr size_t kVectors = 4;  // enough to hide the latency of the additions
  size_t offset = 0;
  for (; offset + kVectors * F::kBytes <= nbytes; offset += kVectors * F::kBytes) {
    fold_block<F, Combine, kVectors>(stages, srcs, dsts, offset, 0);
  }
  for (; offset + F::kBytes <= nbytes; offset += F::kBytes) fold_block<F, Combine, 1>(stages, srcs, dsts, offset, 0);
  if (offset < nbytes) fold_block<F, Combine, 1>(stages, srcs, dsts, offset, nbytes - offset);
}

template <class F, class Combine, class Stages>
void fold(const Stages& stages, const Operands& operands) {
  fold_shape<F, Combine, 0, 0>(stages, operands);
}

// For the operations worth more code: two ranks, and one or two results, with every pointer in a register.
template <class F, class Combine, class Stages>
void fold_fast(const Stages& stages, const Operands& operands) {
  if (operands.nsrc == 2 && operands.ndst == 1) return fold_shape<F, Combine, 2, 1>(stages, operands);
  if (operands.nsrc == 2 && operands.ndst == 2) return fold_shape<F, Combine, 2, 2>(stages, operands);
  fold_shape<F, Combine, 0, 0>(stages, operands);
}

}  // namespace
}  // namespace rr
