// How a lane reads and writes its group of elements: one access of up to 16 bytes, or element by element.
#pragma once

#include "gpu/kernels/table_layout.h"

namespace rr::kernel {

// kNbytes of memory in registers.
template <unsigned kNbytes>
struct Words {
  static_assert(kNbytes == 4 || kNbytes == 8 || kNbytes == 16);
  static constexpr unsigned kCount = kNbytes / 4;
  uint32_t at[kCount];
};

template <unsigned kNbytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using type = uint8_t;
};
template <>
struct UnsignedOf<2> {
  using type = uint16_t;
};
template <>
struct UnsignedOf<4> {
  using type = uint32_t;
};
template <>
struct UnsignedOf<8> {
  using type = uint64_t;
};
template <unsigned kNbytes>
using Unsigned = typename UnsignedOf<kNbytes>::type;

// Element j, which is known when this is compiled: no array is indexed at run time.
template <class U, unsigned kNbytes>
RR_HD U get(const Words<kNbytes>& words, unsigned j) {
  if constexpr (sizeof(U) == 8) {
    return words.at[2 * j] | static_cast<U>(words.at[2 * j + 1]) << 32;
  } else {
    constexpr unsigned kEach = 4 / sizeof(U);
    return static_cast<U>(words.at[j / kEach] >> (8 * sizeof(U) * (j % kEach)));
  }
}
// Into what was zero.
template <class U, unsigned kNbytes>
RR_HD void put(Words<kNbytes>& words, unsigned j, U value) {
  if constexpr (sizeof(U) == 8) {
    words.at[2 * j] = static_cast<uint32_t>(value);
    words.at[2 * j + 1] = static_cast<uint32_t>(value >> 32);
  } else {
    constexpr unsigned kEach = 4 / sizeof(U);
    words.at[j / kEach] |= static_cast<uint32_t>(value) << (8 * sizeof(U) * (j % kEach));
  }
}

RR_HD bool is_aligned(const std::byte* data, unsigned nbytes) {
  return reinterpret_cast<uintptr_t>(data) % nbytes == 0;
}

// Where an operand lies: in memory of a GPU or the host, never in a block's own; accesses that know it are cheaper.
template <class Byte>
RR_HD Byte* operand(uint64_t address) {
  auto* const at = reinterpret_cast<Byte*>(address);
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(at));
#endif
  return at;
}

// Aligned to kNbytes.
template <unsigned kNbytes>
RR_HD Words<kNbytes> load_words(const std::byte* from) {
  Words<kNbytes> words;
#ifdef __CUDA_ARCH__
  if constexpr (kNbytes == 16) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    words.at[0] = all.x, words.at[1] = all.y, words.at[2] = all.z, words.at[3] = all.w;
  } else if constexpr (kNbytes == 8) {
    const uint2 all = *reinterpret_cast<const uint2*>(from);
    words.at[0] = all.x, words.at[1] = all.y;
  } else {
    words.at[0] = *reinterpret_cast<const uint32_t*>(from);
  }
#else
  __builtin_memcpy(&words, __builtin_assume_aligned(from, kNbytes), kNbytes);
#endif
  return words;
}
template <unsigned kNbytes>
RR_HD void store_words(std::byte* to, const Words<kNbytes>& words) {
#ifdef __CUDA_ARCH__
  if constexpr (kNbytes == 16) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words.at[0], words.at[1], words.at[2], words.at[3]);
  } else if constexpr (kNbytes == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(words.at[0], words.at[1]);
  } else {
    *reinterpret_cast<uint32_t*>(to) = words.at[0];
  }
#else
  __builtin_memcpy(__builtin_assume_aligned(to, kNbytes), &words, kNbytes);
#endif
}

// One element; a whole access where it lies on a multiple of its size, else bytes.
template <class U>
RR_HD U load_one(const std::byte* from) {
  U value = 0;
#ifdef __CUDA_ARCH__
  if (is_aligned(from, sizeof(U))) return *reinterpret_cast<const U*>(from);
  if constexpr (sizeof(U) > 1) {
    RR_UNROLL
    for (unsigned i = 0; i < sizeof(U); ++i) value |= static_cast<U>(static_cast<U>(from[i]) << (8 * i));
  }
#else
  __builtin_memcpy(&value, from, sizeof(U));
#endif
  return value;
}
template <class U>
RR_HD void store_one(std::byte* to, U value) {
#ifdef __CUDA_ARCH__
  if (is_aligned(to, sizeof(U))) {
    *reinterpret_cast<U*>(to) = value;
  } else if constexpr (sizeof(U) > 1) {
    RR_UNROLL
    for (unsigned i = 0; i < sizeof(U); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
  }
#else
  __builtin_memcpy(to, &value, sizeof(U));
#endif
}

// kCount groups of a lane, kWarps pieces apart: one access each, for all lanes of the warp.
template <unsigned kElements, unsigned kCount>
struct WholeGroups {
  static constexpr unsigned kGroups = kCount;
  int64_t index;  // of the first element

  // False: they are not such groups. The item has all these pieces.
  RR_HD bool find(const Extent& extent, uint64_t piece, unsigned lane) {
    const int64_t begin = static_cast<int64_t>((piece - extent.first) * (kWarpSize * kElements)) - extent.shift();
    index = begin + lane * kElements;
    return extent.is_contiguous() && begin >= 0 &&
           begin + ((kCount - 1) * kBlock + kWarpSize) * kElements <= extent.count();
  }
  template <unsigned kNbytes>
  RR_HD void load(uint64_t base, Words<kNbytes * kElements> (&groups)[kCount]) const {
    const auto* const from = operand<const std::byte>(base + static_cast<uint64_t>(index) * kNbytes);
    RR_UNROLL
    for (unsigned k = 0; k < kCount; ++k)
      groups[k] = load_words<kNbytes * kElements>(from + k * kBlock * kNbytes * kElements);
  }
  template <unsigned kNbytes>
  RR_HD void store(uint64_t base, const Words<kNbytes * kElements> (&groups)[kCount]) const {
    auto* const to = operand<std::byte>(base + static_cast<uint64_t>(index) * kNbytes);
    RR_UNROLL
    for (unsigned k = 0; k < kCount; ++k) store_words(to + k * kBlock * kNbytes * kElements, groups[k]);
  }
};

// The value, of which the compiler knows nothing: what is computed from it stays where it is used, so that registers
// are not filled with offsets of elements ahead of a loop.
RR_HD int32_t opaque(int32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// One group of any kind: elements begin to end - 1 of index, index + step, ...
template <unsigned kElements>
struct AnyGroup {
  static constexpr unsigned kGroups = 1;
  int64_t index;
  int32_t begin, end, step;

  RR_HD void find(const Extent& extent, uint64_t piece, unsigned lane) {
    const auto first = static_cast<int64_t>((piece - extent.first) * (kWarpSize * kElements));
    step = extent.is_contiguous() ? 1 : static_cast<int32_t>(kWarpSize);
    index = extent.is_contiguous() ? first + lane * kElements - extent.shift() : first + lane;
    const int64_t left = (extent.count() - index + step - 1) / step;
    begin = index < 0 ? static_cast<int32_t>(-index) : 0;
    end = left < static_cast<int64_t>(kElements) ? static_cast<int32_t>(left) : static_cast<int32_t>(kElements);
  }
  RR_HD bool is_whole() const { return step == 1 && begin == 0 && end == static_cast<int32_t>(kElements); }

  template <unsigned kNbytes>
  RR_HD void load(uint64_t base, Words<kNbytes * kElements> (&groups)[1]) const {
    using U = Unsigned<kNbytes>;
    const auto* const from = operand<const std::byte>(base + static_cast<uint64_t>(index) * kNbytes);
    if (is_whole()) {
      groups[0] = load_words<kNbytes * kElements>(from);
      return;
    }
    groups[0] = {};
    const int32_t first = opaque(begin), last = opaque(end), stride = opaque(step * static_cast<int32_t>(kNbytes));
    RR_UNROLL
    for (int32_t j = 0; j < static_cast<int32_t>(kElements); ++j) {
      if (first <= j && j < last) put<U>(groups[0], j, load_one<U>(from + j * stride));
    }
  }
  template <unsigned kNbytes>
  RR_HD void store(uint64_t base, const Words<kNbytes * kElements> (&groups)[1]) const {
    using U = Unsigned<kNbytes>;
    auto* const to = operand<std::byte>(base + static_cast<uint64_t>(index) * kNbytes);
    if (is_whole()) return store_words(to, groups[0]);
    const int32_t first = opaque(begin), last = opaque(end), stride = opaque(step * static_cast<int32_t>(kNbytes));
    RR_UNROLL
    for (int32_t j = 0; j < static_cast<int32_t>(kElements); ++j) {
      if (first <= j && j < last) store_one<U>(to + j * stride, get<U>(groups[0], j));
    }
  }
};

}  // namespace rr::kernel
