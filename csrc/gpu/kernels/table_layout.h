// What a launch's table looks like in memory: table_builder.h writes it, the kernels read it.
//
// A list of items is numbered through in pieces. A piece is what one warp handles at once: 32 lanes times a group, the
// elements that fill 16 bytes of the wider type. Every block has a contiguous share of the pieces, so all of them are
// equally busy whether the list has one item or thousands.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define RR_HD __host__ __device__ __forceinline__
#define RR_UNROLL _Pragma("unroll")
#define RR_NO_UNROLL _Pragma("unroll 1")
#else
#define RR_HD inline
#define RR_UNROLL
#define RR_NO_UNROLL
#endif

namespace rr {

// The one parameter of every kernel, by value. A short table travels in it, so that the launch needs no upload; it
// stays within the 4 KiB that every CUDA takes as parameters.
struct alignas(16) LaunchArgument {
  const std::byte* table = nullptr;  // in device memory, aligned to 16 bytes; null: it is `inlined`
  alignas(16) std::byte inlined[4064];
};

namespace kernel {

inline constexpr unsigned kWarpSize = 32;
inline constexpr unsigned kBlock = 512;  // threads: 3 of them are all that small GPUs hold
inline constexpr unsigned kWarps = kBlock / kWarpSize;
inline constexpr unsigned kGroupNbytes = 16;

// Blocks that a multiprocessor holds at once: 65536 registers are 40 a thread for 3 blocks, 64 for 2, 128 for 1.
inline constexpr unsigned kMoveBlocks = 3;
inline constexpr unsigned kFoldBlocks = 2;
inline constexpr unsigned kWideBlocks = 1;

// Where an item lies among the pieces and its elements among the groups.
struct Extent {
  uint64_t first = 0;   // piece
  uint64_t packed = 0;  // count, shift (4 bits), is_contiguous

  static constexpr unsigned kShiftAt = 58;
  static constexpr unsigned kContiguousAt = 62;

  static Extent of(uint64_t first, uint64_t count, unsigned shift, bool is_contiguous) {
    return {first, count | uint64_t{shift} << kShiftAt | uint64_t{is_contiguous} << kContiguousAt};
  }
  RR_HD int64_t count() const { return static_cast<int64_t>(packed & ((uint64_t{1} << kShiftAt) - 1)); }
  // Contiguous: all addresses lie alike, and group g begins at element g * elements - shift, which is a multiple of 16
  // bytes. Otherwise lane l of a piece has its elements l, l + 32, l + 64, ..., and accesses are of one element.
  RR_HD unsigned shift() const { return static_cast<unsigned>(packed >> kShiftAt) & 15; }
  RR_HD bool is_contiguous() const { return (packed >> kContiguousAt & 1) != 0; }
};

struct alignas(16) MoveItem {
  Extent extent;
  uint64_t src = 0;  // addresses
  uint64_t dst = 0;
};

struct alignas(16) FoldItem {
  Extent extent;
  uint32_t pointer = 0;  // index of the first of nsrc + ndst addresses
  uint32_t nsrc = 0;
  uint32_t ndst = 0;
  uint32_t unused = 0;
};

// How two elements are folded. The kernels for integers know no sign, but for the last two.
enum FoldOp : uint32_t { kSum, kProduct, kMin, kMax, kAnd, kOr, kMinSigned, kMaxSigned };

struct alignas(16) TableHead {
  uint32_t share = 0;     // pieces of every block ...
  uint32_t longer = 0;    // ... and one more of the first so many
  uint32_t nitems = 0;    // an item more ends the list: its first is the number of pieces
  uint32_t items = 0;     // offsets in bytes: of the items,
  uint32_t starts = 0;    // of the uint32_t item that each block begins in (0: all in the first),
  uint32_t pointers = 0;  // of the uint64_t addresses
  FoldOp op = kSum;
  uint32_t truth = 0;  // elements become 1 or 0 first
  int32_t divisor = 1;
  uint32_t unused = 0;  // equal lists have equal tables, byte for byte
  double prescale = 1.0;
  double postscale = 1.0;
  uint64_t unused_too = 0;
};
static_assert(sizeof(TableHead) == 64 && sizeof(MoveItem) == 32 && sizeof(FoldItem) == 32);

// The table as the kernels see it.
struct Table {
  const std::byte* data;

  RR_HD const TableHead& head() const { return *reinterpret_cast<const TableHead*>(data); }
  template <class Item>
  RR_HD const Item* items() const {
    return reinterpret_cast<const Item*>(data + head().items);
  }
  RR_HD const uint64_t* pointers() const { return reinterpret_cast<const uint64_t*>(data + head().pointers); }
  RR_HD uint32_t start(unsigned block) const {
    return head().starts == 0 ? 0 : reinterpret_cast<const uint32_t*>(data + head().starts)[block];
  }
  RR_HD uint32_t share(unsigned block) const { return head().share + (block < head().longer ? 1 : 0); }
  // Pieces of the blocks before this one.
  RR_HD uint64_t before(unsigned block) const {
    const uint32_t longer = head().longer;
    return static_cast<uint64_t>(block) * head().share + (block < longer ? block : longer);
  }
};

}  // namespace kernel
}  // namespace rr
