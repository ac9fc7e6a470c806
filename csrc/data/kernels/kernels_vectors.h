// Vectors of kVectorBytes, and how they lie in memory.
//
// The kernels_*.h are compiled once per instruction set. So everything in them is in unnamed namespaces, and nothing
// may call an inline function with external linkage (std::min, even name(dtype)): the linker would keep one copy of
// it, perhaps the AVX-512 one, for the whole program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rr {
namespace {

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;
using Signed = Vector<int32_t>;  // the type of comparisons of Words and Floats

// A format says how elements lie in memory and in registers: kBytes of memory are kParts vectors of type Part. A result
// has kResultScale times the bytes of an input.
template <class T>
struct Native {
  using Element = T;
  using Part = Vector<T>;
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kBytes = kVectorBytes;
  static constexpr size_t kParts = 1;
  static constexpr size_t kResultScale = 1;

  [[gnu::always_inline]] static inline void load(Part* parts, const char* from) {
    Part part;  // not straight into the array, which would then stay in memory
    __builtin_memcpy(&part, from, kBytes);
    *parts = part;
  }
  [[gnu::always_inline]] static inline void store(char* to, const Part* parts) {
    const Part part = *parts;
    __builtin_memcpy(to, &part, kBytes);
  }
};

// n < kVectorBytes bytes without a call, which would be a third of the time of a reduction of 8 bytes (measured).
[[gnu::always_inline]] inline void copy_some(char* to, const char* from, size_t n) {
#pragma GCC unroll 8
  for (size_t step = kVectorBytes / 2; step > 0; step /= 2) {
    if (n & step) {
      __builtin_memcpy(to, from, step);
      to += step;
      from += step;
    }
  }
}

// n < F::kBytes bytes of an input; the other lanes are zero.
template <class F>
[[gnu::always_inline]] inline void load_some(typename F::Part* parts, const char* from, size_t n) {
  char whole[F::kBytes] = {};
  copy_some(whole, from, n);
  F::load(parts, whole);
}

template <class F>
[[gnu::always_inline]] inline void store_some(char* to, const typename F::Part* parts, size_t n) {
  char whole[F::kBytes * F::kResultScale];
  F::store(whole, parts);
  copy_some(to, whole, n * F::kResultScale);
}

}  // namespace
}  // namespace rr
