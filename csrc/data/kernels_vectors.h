// Vectors of kVectorBytes, and the formats in which they lie in memory.
//
// Included only through kernels_impl.h. All of it is in unnamed namespaces and nothing here may call an inline function
// with external linkage (std::min, even name(dtype)): the linker would keep one copy of it, perhaps the AVX-512 one, for
// the whole program.
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
typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));

// A format: what one vector is in memory (kBytes, kElementBytes) and in registers (Type, of Element).
template <class T>
struct Native {
  using Element = T;
  using Type = Vector<T>;
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kBytes = kVectorBytes;

  [[gnu::always_inline]] static inline Type load(const char* from) {
    Type value;
    __builtin_memcpy(&value, from, kBytes);
    return value;
  }
  [[gnu::always_inline]] static inline void store(char* to, Type value) { __builtin_memcpy(to, &value, kBytes); }
};

// 16-bit floats are fp32 in registers. Widen and Narrow are functions of the file for the instruction set.
template <Floats (*widen)(Halves), Halves (*narrow)(Floats)>
struct Half {
  using Element = float;
  using Type = Floats;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kBytes = kVectorBytes / 2;

  [[gnu::always_inline]] static inline Type load(const char* from) {
    Halves halves;
    __builtin_memcpy(&halves, from, kBytes);
    return widen(halves);
  }
  [[gnu::always_inline]] static inline void store(char* to, Type value) {
    const Halves halves = narrow(value);
    __builtin_memcpy(to, &halves, kBytes);
  }
};

// bfloat16 is the upper half of fp32. Not vcvtneps2bf16, which flushes denormals.
[[gnu::always_inline]] inline Floats widen_bf16(Halves halves) {
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

[[gnu::always_inline]] inline Halves narrow_bf16(Floats value) {
  const Words bits = (Words)value;
  const Words to_even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words quiet_nan = (bits >> 16) | 0x40;
  return __builtin_convertvector(value != value ? quiet_nan : to_even, Halves);
}

// n < F::kBytes bytes; the other lanes are zero.
template <class F>
[[gnu::always_inline]] inline typename F::Type load_part(const char* from, size_t n) {
  char whole[F::kBytes] = {};
  __builtin_memcpy(whole, from, n);
  return F::load(whole);
}

template <class F>
[[gnu::always_inline]] inline void store_part(char* to, typename F::Type value, size_t n) {
  char whole[F::kBytes];
  F::store(whole, value);
  __builtin_memcpy(to, whole, n);
}

}  // namespace
}  // namespace rr
