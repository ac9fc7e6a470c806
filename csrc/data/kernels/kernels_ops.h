// What is computed on vectors: how two are folded, and what happens before and after the fold.
#pragma once

#include "data/kernels/kernels_vectors.h"

namespace rr {
namespace {

struct Sum {
  template <class V>
  [[gnu::always_inline]] static inline V fold(V a, V b) {
    return a + b;
  }
};
struct Product {
  template <class V>
  [[gnu::always_inline]] static inline V fold(V a, V b) {
    return a * b;
  }
};
// a != a lets the first NaN win; b wins by itself when it is the only one. For integers it folds to nothing.
struct Min {
  template <class V>
  [[gnu::always_inline]] static inline V fold(V a, V b) {
    return (a < b) | (a != a) ? a : b;
  }
};
struct Max {
  template <class V>
  [[gnu::always_inline]] static inline V fold(V a, V b) {
    return (a > b) | (a != a) ? a : b;
  }
};
struct And {
  template <class V>
  [[gnu::always_inline]] static inline V fold(V a, V b) {
    return a & b;
  }
};
struct Or {
  template <class V>
  [[gnu::always_inline]] static inline V fold(V a, V b) {
    return a | b;
  }
};

// What happens to an input before the fold, and to the result after it.
struct AsIs {
  template <class V>
  [[gnu::always_inline]] inline V before(V value) const {
    return value;
  }
  template <class V>
  [[gnu::always_inline]] inline V after(V value) const {
    return value;
  }
};
template <class T>
struct ScaledAfter : AsIs {
  T postscale;
  explicit ScaledAfter(T post) : postscale(post) {}
  template <class V>
  [[gnu::always_inline]] inline V after(V value) const {
    return value * postscale;
  }
};
template <class T>
struct Scaled : ScaledAfter<T> {
  T prescale;
  Scaled(T pre, T post) : ScaledAfter<T>(post), prescale(pre) {}
  template <class V>
  [[gnu::always_inline]] inline V before(V value) const {
    return value * prescale;
  }
};
struct Truth : AsIs {
  template <class V>
  [[gnu::always_inline]] inline V before(V value) const {
    return (V)(value != 0) & 1;
  }
};

}  // namespace
}  // namespace rr
