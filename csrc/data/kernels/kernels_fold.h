// The fold: one pass that reads every source once and writes every destination once; partial results stay in registers.
#pragma once

#include "data/kernels/kernels_ops.h"

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

// kLoads times F::kBytes at a byte offset; or one load of which only the first `some` bytes exist (some > 0). All loads
// come before all stores, so a destination may be a source.
template <class F, class Combine, size_t kLoads, class Stages, class Srcs, class Dsts>
[[gnu::always_inline]] inline void fold_block(const Stages& stages, const Srcs& srcs, const Dsts& dsts, size_t offset,
                                              size_t some) {
  using Part = typename F::Part;
  constexpr size_t kParts = kLoads * F::kParts;
  const auto load = [&](Part * parts, size_t s) __attribute__((always_inline)) {
    const char* from = static_cast<const char*>(srcs.at[s]) + offset;
    if (some) {
      load_some<F>(parts, from, some);
    } else {
#pragma GCC unroll 16
      for (size_t i = 0; i < kLoads; ++i) F::load(parts + i * F::kParts, from + i * F::kBytes);
    }
#pragma GCC unroll 16
    for (size_t p = 0; p < kParts; ++p) parts[p] = stages.before(parts[p]);
  };
  Part folded[kParts], next[kParts];
  load(folded, 0);
  for (size_t s = 1; s < srcs.size(); ++s) {
    load(next, s);
#pragma GCC unroll 16
    for (size_t p = 0; p < kParts; ++p) folded[p] = Combine::fold(folded[p], next[p]);
  }
#pragma GCC unroll 16
  for (size_t p = 0; p < kParts; ++p) folded[p] = stages.after(folded[p]);
  for (size_t d = 0; d < dsts.size(); ++d) {
    char* to = static_cast<char*>(dsts.at[d]) + offset * F::kResultScale;
    if (some) {
      store_some<F>(to, folded, some);
    } else {
#pragma GCC unroll 16
      for (size_t i = 0; i < kLoads; ++i) F::store(to + i * F::kBytes * F::kResultScale, folded + i * F::kParts);
    }
  }
}

template <class F, class Combine, size_t kSources, size_t kDestinations, class Stages>
void fold_shape(const Stages& given, const Operands& operands) {
  const Stages stages = given;  // in registers: the stores below cannot change it
  const Pointers<const void*, kSources> srcs(operands.srcs, operands.nsrc);
  const Pointers<void*, kDestinations> dsts(operands.dsts, operands.ndst);
  const size_t nbytes = operands.count * F::kElementBytes;
  constexpr size_t kLoads = 4 / F::kParts;  // four vectors hide the latency of the additions
  size_t offset = 0;
  for (; offset + kLoads * F::kBytes <= nbytes; offset += kLoads * F::kBytes) {
    fold_block<F, Combine, kLoads>(stages, srcs, dsts, offset, 0);
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
