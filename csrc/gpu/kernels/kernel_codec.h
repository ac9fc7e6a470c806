// The codec int8 of data/codec.h: blocks of 256 elements with a scale. The codecs of 16 bits are casts.
#pragma once

#include "gpu/kernels/kernel_number.h"
#include "gpu/kernels/kernel_walk.h"

namespace rr::kernel {

inline constexpr unsigned kCodes = 256;
inline constexpr unsigned kCodedNbytes = sizeof(float) + kCodes;
// A lane's share of a block: elements lane, lane + 32, ...; so word `lane` of the codes (elements lane, lane + 64,
// lane + 128, lane + 192) and word lane + 32 are its own.
inline constexpr unsigned kEach = kCodes / kWarpSize;

// One block of the one item. A short one, which is the last, has its codes in the order of the elements.
struct CodedBlock {
  const std::byte* src;
  std::byte* dst;
  unsigned count;

  template <bool kEncode>
  static RR_HD CodedBlock of(const MoveItem& item, uint64_t block) {
    const uint64_t left = static_cast<uint64_t>(item.extent.count()) - block * kCodes;
    const auto* const src = operand<const std::byte>(item.src);
    auto* const dst = operand<std::byte>(item.dst);
    return {src + block * (kEncode ? kCodes * sizeof(float) : kCodedNbytes),
            dst + block * (kEncode ? kCodedNbytes : kCodes * sizeof(float)),
            left < kCodes ? static_cast<unsigned>(left) : kCodes};
  }
};

// A warp at work on what its lanes find out together. On the CPU the lanes go one after the other.
template <class State>
struct Warp {
#ifdef __CUDA_ARCH__
  unsigned lane;
  uint32_t* slots;  // kWarpSize, in shared memory
  State state;
  template <class Step>
  __device__ __forceinline__ void each(const Step& step) {
    step(lane, state);
    __syncwarp();
  }
#else
  uint32_t slots[kWarpSize];
  State state[kWarpSize];
  template <class Step>
  void each(const Step& step) {
    for (unsigned lane = 0; lane < kWarpSize; ++lane) step(lane, state[lane]);
  }
#endif
};

struct EncodeInt8 {
  static constexpr unsigned kBlocks = kMoveBlocks;
  struct State {
    uint32_t elements[kEach];
  };

  static RR_HD void block(const CodedBlock& at, Warp<State>& warp) {
    warp.each([&](unsigned lane, State& state) {
      uint32_t largest = 0;  // magnitude, as bits: finite < infinity < NaN
      RR_UNROLL
      for (unsigned j = 0; j < kEach; ++j) {
        const unsigned i = lane + j * kWarpSize;
        state.elements[j] = i < at.count ? load_one<uint32_t>(at.src + i * sizeof(float)) : 0;
      }
      RR_UNROLL
      for (unsigned j = 0; j < kEach; ++j) {
        const uint32_t magnitude = state.elements[j] & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
      }
      warp.slots[lane] = largest;
    });
    warp.each([&](unsigned lane, State& state) {
      uint32_t largest = 0;
      RR_UNROLL
      for (unsigned l = 0; l < kWarpSize; ++l) largest = warp.slots[l] > largest ? warp.slots[l] : largest;
      const bool finite = largest < 0x7f800000;
      // 24 - 7 = 17 significant bits; 127 has 7.
      float scale = finite ? bits_as<float>(bits_as<uint32_t>(bits_as<float>(largest) / 127.0f) & ~0x7fu) : 0.0f;
      if (scale < 0x1p-126f) scale = 0.0f;
      const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
      uint32_t words[2] = {0, 0};
      RR_UNROLL
      for (unsigned j = 0; j < kEach; ++j) {
        // Next to 1.5 * 2^23 the spacing of floats is 1: the addition rounds, and the lowest byte is the code.
        const float steps = finite ? bits_as<float>(state.elements[j]) * inverse : 0.0f;
        words[j % 2] |= (bits_as<uint32_t>(steps + 0x1.8p23f) & 0xff) << (8 * (j / 2));
      }
      std::byte* const codes = at.dst + sizeof(float);
      if (at.count == kCodes) {
        store_one(codes + lane * 4, words[0]);
        store_one(codes + (lane + kWarpSize) * 4, words[1]);
      } else {
        RR_UNROLL
        for (unsigned j = 0; j < kEach; ++j) {
          const unsigned i = lane + j * kWarpSize;
          if (i < at.count) codes[i] = static_cast<std::byte>(words[j % 2] >> (8 * (j / 2)));
        }
      }
      if (lane == 0) store_one(at.dst, finite ? bits_as<uint32_t>(scale) : 0x7fc00000u);
    });
  }

  // Every warp of its own: `warp` is the same for the lanes of one.
  static RR_HD void run(const Table& table, const Where& where, Warp<State>& warp) {
    const MoveItem item = table.items<MoveItem>()[0];
    const uint64_t end = table.before(where.block + 1);
    for (uint64_t piece = table.before(where.block) + where.thread / kWarpSize; piece < end; piece += kWarps) {
      block(CodedBlock::of<true>(item, piece), warp);
    }
  }
};

struct DecodeInt8 {
  static constexpr unsigned kBlocks = kMoveBlocks;

  static RR_HD void run(const Table& table, const Where& where) {
    const MoveItem item = table.items<MoveItem>()[0];
    const uint64_t end = table.before(where.block + 1);
    const unsigned lane = where.thread % kWarpSize;
    for (uint64_t piece = table.before(where.block) + where.thread / kWarpSize; piece < end; piece += kWarps) {
      const CodedBlock at = CodedBlock::of<false>(item, piece);
      uint32_t scale, words[2];
      load(at, lane, scale, words);
      store(at, lane, bits_as<float>(scale), words);
    }
  }

 private:
  // Byte j / 2 of word j % 2 is the code of element lane + 32 j.
  static RR_HD void load(const CodedBlock& at, unsigned lane, uint32_t& scale, uint32_t (&words)[2]) {
    const std::byte* const codes = at.src + sizeof(float);
    scale = load_one<uint32_t>(at.src);
    if (at.count == kCodes) {
      words[0] = load_one<uint32_t>(codes + lane * 4);
      words[1] = load_one<uint32_t>(codes + (lane + kWarpSize) * 4);
      return;
    }
    words[0] = words[1] = 0;
    RR_UNROLL
    for (unsigned j = 0; j < kEach; ++j) {
      const unsigned i = lane + j * kWarpSize;
      if (i < at.count) words[j % 2] |= static_cast<uint32_t>(codes[i]) << (8 * (j / 2));
    }
  }
  static RR_HD void store(const CodedBlock& at, unsigned lane, float scale, const uint32_t (&words)[2]) {
    RR_UNROLL
    for (unsigned j = 0; j < kEach; ++j) {
      const unsigned i = lane + j * kWarpSize;
      const auto code = static_cast<int32_t>(words[j % 2] << (24 - 8 * (j / 2))) >> 24;
      if (i < at.count) store_one(at.dst + i * 4, bits_as<uint32_t>(static_cast<float>(code) * scale));
    }
  }
};

}  // namespace rr::kernel
