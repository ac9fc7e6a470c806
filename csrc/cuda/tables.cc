#include "cuda/tables.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/errors.h"
#include "cuda/kernel_list.h"

namespace rr {
namespace {

using kernel::FoldItem;
using kernel::FoldOp;
using kernel::kGroupNbytes;
using kernel::kWarps;
using kernel::kWarpSize;
using kernel::MoveItem;
using kernel::Span;
using kernel::TableHead;

uint64_t address(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

// Where an operand lies: elements past the last multiple of a group's size. Negative: not at a multiple of an
// element's.
int phase(uint64_t at, size_t element, size_t elements) {
  return at % element != 0 ? -1 : static_cast<int>(at / element % elements);
}

uint64_t pieces(uint64_t count, unsigned shift, size_t elements) {
  const uint64_t of = kWarpSize * elements;
  return (count + shift + of - 1) / of;
}

// The span of an item whose operands have these phases, after `first` pieces.
Span span_of(uint64_t first, uint64_t count, int phase, bool alike) {
  if (count >= uint64_t{1} << Span::kShiftAt) throw InvalidArgumentError("a tensor of 2^58 elements or more");
  const bool is_contiguous = alike && phase >= 0;
  return Span::of(first, count, is_contiguous ? static_cast<unsigned>(phase) : 0, is_contiguous);
}

// Head, items, the item that each block begins in, addresses: laid out one after the other.
template <class Item>
Launch finished(const char* kernel, TableHead head, std::vector<Item> items, uint64_t npieces,
                const std::vector<uint64_t>& pointers, unsigned blocks) {
  Launch launch;
  launch.kernel = kernel;
  launch.block = kernel::kBlock;
  if (npieces == 0) return launch;
  launch.grid = static_cast<unsigned>(std::min<uint64_t>(blocks, (npieces + kWarps - 1) / kWarps));
  const uint64_t share = npieces / launch.grid;
  if (share >= std::numeric_limits<uint32_t>::max()) throw InvalidArgumentError("a list of 2^40 bytes or more a block");
  head.share = static_cast<uint32_t>(share);
  head.longer = static_cast<uint32_t>(npieces % launch.grid);
  head.nitems = static_cast<uint32_t>(items.size());

  std::vector<uint32_t> starts;
  if (items.size() > 1) {
    uint32_t at = 0;
    for (unsigned block = 0; block < launch.grid; ++block) {
      const uint64_t piece = block * share + std::min(block, head.longer);
      while (at + 1 < items.size() && items[at + 1].span.first <= piece) ++at;
      starts.push_back(at);
    }
  }
  items.emplace_back().span.first = npieces;

  const auto place = [&](size_t nbytes) {
    const size_t at = launch.table.size();
    if (at + nbytes > std::numeric_limits<uint32_t>::max()) throw InvalidArgumentError("a list of too many tensors");
    launch.table.resize((at + nbytes + 15) / 16 * 16);
    return static_cast<uint32_t>(at);
  };
  place(sizeof head);
  head.items = place(items.size() * sizeof(Item));
  if (!starts.empty()) head.starts = place(starts.size() * sizeof starts[0]);
  if (!pointers.empty()) head.pointers = place(pointers.size() * sizeof pointers[0]);
  const auto put = [&](uint32_t at, const void* from, size_t nbytes) {
    if (nbytes != 0) std::memcpy(launch.table.data() + at, from, nbytes);
  };
  put(0, &head, sizeof head);
  put(head.items, items.data(), items.size() * sizeof(Item));
  put(head.starts, starts.data(), starts.size() * sizeof(uint32_t));
  put(head.pointers, pointers.data(), pointers.size() * sizeof(uint64_t));
  return launch;
}

bool is_floating(DType dtype) { return dtype <= DType::kFloat64; }

// The name in kernel_list.h: what a kernel does, and for what.
const char* kernel_named(const std::string& name) {
  for (const char* known : kernel_names()) {
    if (name == known) return known;
  }
  throw InternalError("there is no kernel " + name);
}

// Copies: in the widest elements that all addresses and sizes are multiples of, so that those that do not lie alike
// are copied by these.
Launch copy_launch(const std::vector<DevicePart>& parts, size_t nbytes_each, unsigned multiprocessors) {
  uint64_t bits = 8;
  for (const DevicePart& part : parts) {
    if (part.count != 0) bits |= address(part.src) | address(part.dst) | part.count * nbytes_each;
  }
  const size_t element = bits & ~(bits - 1);
  const size_t elements = kGroupNbytes / element;
  std::vector<MoveItem> items;
  uint64_t npieces = 0;
  for (const DevicePart& part : parts) {
    if (part.count == 0) continue;
    MoveItem item;
    item.src = address(part.src);
    item.dst = address(part.dst);
    const int at = phase(item.src, element, elements);
    item.span = span_of(npieces, part.count * nbytes_each / element, at, at == phase(item.dst, element, elements));
    npieces += pieces(static_cast<uint64_t>(item.span.count()), item.span.shift(), elements);
    items.push_back(item);
  }
  return finished(kernel_named("rr_copy_" + std::to_string(element)), TableHead(), std::move(items), npieces, {},
                  multiprocessors * kernel::kMoveBlocks);
}

Launch cast_launch(const std::vector<DevicePart>& parts, DType from, DType to, double factor,
                   unsigned multiprocessors) {
  const size_t elements = kGroupNbytes / std::max(itemsize(from), itemsize(to));
  std::vector<MoveItem> items;
  uint64_t npieces = 0;
  for (const DevicePart& part : parts) {
    if (part.count == 0) continue;
    MoveItem item;
    item.src = address(part.src);
    item.dst = address(part.dst);
    const int at = phase(item.src, itemsize(from), elements);
    item.span = span_of(npieces, part.count, at, at == phase(item.dst, itemsize(to), elements));
    npieces += pieces(part.count, item.span.shift(), elements);
    items.push_back(item);
  }
  TableHead head;
  head.prescale = factor;
  return finished(kernel_named(std::string("rr_move_") + name(from) + "_" + name(to)), head, std::move(items), npieces,
                  {}, multiprocessors * kernel::kMoveBlocks);
}

FoldOp fold_op(const Reduction& reduction) {
  const bool is_signed = reduction.dtype >= DType::kInt8 && reduction.dtype <= DType::kInt64;
  switch (reduction.op) {
    case ReduceOp::kProduct:
      return kernel::kProduct;
    case ReduceOp::kMin:
      return is_signed ? kernel::kMinSigned : kernel::kMin;
    case ReduceOp::kMax:
      return is_signed ? kernel::kMaxSigned : kernel::kMax;
    case ReduceOp::kLogicalAnd:
    case ReduceOp::kBitwiseAnd:
      return kernel::kAnd;
    case ReduceOp::kLogicalOr:
    case ReduceOp::kBitwiseOr:
      return kernel::kOr;
    default:
      return kernel::kSum;
  }
}

}  // namespace

LaunchArgument Launch::argument(const std::byte* uploaded) const {
  LaunchArgument argument;
  if (needs_upload()) {
    argument.table = uploaded;
  } else {
    std::memcpy(argument.inlined, table.data(), table.size());
  }
  return argument;
}

Launch move_launch(const std::vector<DevicePart>& parts, DType from, DType to, double factor,
                   unsigned multiprocessors) {
  if (from == to && factor == 1.0) return copy_launch(parts, itemsize(from), multiprocessors);
  if (is_floating(from) && is_floating(to)) return cast_launch(parts, from, to, factor, multiprocessors);
  if (from != to) {
    throw InvalidArgumentError(std::string("a GPU casts between floating-point types, not ") + name(from) + " to " +
                               name(to));
  }
  std::vector<DeviceFold> folds;
  for (const DevicePart& part : parts) folds.push_back({{part.src}, {part.dst}, part.count});
  return fold_launch(folds, Reduction{from, ReduceOp::kSum, factor}, multiprocessors);
}

Launch fold_launch(const std::vector<DeviceFold>& folds, const Reduction& reduction, unsigned multiprocessors) {
  check(reduction);
  TableHead head;
  head.op = fold_op(reduction);
  head.prescale = reduction.prescale;
  head.postscale = reduction.postscale;
  head.divisor = reduction.op == ReduceOp::kAverage ? reduction.divisor : 1;
  const size_t element = itemsize(reduction.dtype);
  std::string kernel = "rr_fold_" + std::to_string(element);
  unsigned blocks = kernel::kFoldBlocks;
  if (is_floating(reduction.dtype)) {
    kernel = std::string("rr_fold_") + name(reduction.dtype);
    head.postscale = reduction.postscale / head.divisor;
  } else if (reduction.dtype == DType::kBool) {
    const bool all = reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kProduct ||
                     reduction.op == ReduceOp::kLogicalAnd || reduction.op == ReduceOp::kBitwiseAnd;
    head.op = all ? kernel::kAnd : kernel::kOr;
    head.truth = 1;
  } else if (reduction.op == ReduceOp::kAverage || reduction.prescale != 1.0 || reduction.postscale != 1.0) {
    // The kernels for wide types know the sign from their type. Which sums double holds exactly: data/kernels_wide.h.
    const bool in_double = (element <= 4 && reduction.op != ReduceOp::kProduct) || reduction.prescale != 1.0;
    kernel = std::string(in_double ? "rr_wide_" : "rr_exact_") + name(reduction.dtype);
    blocks = kernel::kWideBlocks;
    if (head.op == kernel::kMinSigned) head.op = kernel::kMin;
    if (head.op == kernel::kMaxSigned) head.op = kernel::kMax;
  } else {
    head.truth = reduction.op == ReduceOp::kLogicalAnd || reduction.op == ReduceOp::kLogicalOr;
  }

  const size_t elements = kGroupNbytes / element;
  std::vector<FoldItem> items;
  std::vector<uint64_t> pointers;
  uint64_t npieces = 0;
  for (const DeviceFold& fold : folds) {
    if (fold.count == 0) continue;
    if (fold.srcs.empty()) throw InternalError("a fold of no sources");
    FoldItem item;
    item.pointer = static_cast<uint32_t>(pointers.size());
    item.nsrc = static_cast<uint32_t>(fold.srcs.size());
    item.ndst = static_cast<uint32_t>(fold.dsts.size());
    for (const std::byte* src : fold.srcs) pointers.push_back(address(src));
    for (const std::byte* dst : fold.dsts) pointers.push_back(address(dst));
    const int at = phase(pointers[item.pointer], element, elements);
    const bool alike = std::all_of(pointers.begin() + item.pointer, pointers.end(),
                                   [&](uint64_t pointer) { return phase(pointer, element, elements) == at; });
    item.span = span_of(npieces, fold.count, at, alike);
    npieces += pieces(fold.count, item.span.shift(), elements);
    items.push_back(item);
  }
  return finished(kernel_named(kernel), head, std::move(items), npieces, pointers, multiprocessors * blocks);
}

namespace {

Launch int8_launch(const char* kernel, const std::byte* src, std::byte* dst, size_t count, unsigned multiprocessors) {
  MoveItem item;
  item.span = span_of(0, count, -1, false);
  item.src = address(src);
  item.dst = address(dst);
  const uint64_t npieces = (count + kWireBlock - 1) / kWireBlock;
  return finished<MoveItem>(kernel, TableHead(), {item}, npieces, {}, multiprocessors * kernel::kMoveBlocks);
}

}  // namespace

Launch encode_launch(Wire wire, const std::byte* src, std::byte* dst, size_t count, unsigned multiprocessors) {
  switch (wire) {
    case Wire::kFp16:
      return move_launch({{src, dst, count}}, DType::kFloat32, DType::kFloat16, 1.0, multiprocessors);
    case Wire::kBf16:
      return move_launch({{src, dst, count}}, DType::kFloat32, DType::kBFloat16, 1.0, multiprocessors);
    case Wire::kInt8:
      return int8_launch("rr_encode_int8", src, dst, count, multiprocessors);
    default:
      return move_launch({{src, dst, count}}, DType::kFloat32, DType::kFloat32, 1.0, multiprocessors);
  }
}

Launch decode_launch(Wire wire, const std::byte* src, std::byte* dst, size_t count, unsigned multiprocessors) {
  switch (wire) {
    case Wire::kFp16:
      return move_launch({{src, dst, count}}, DType::kFloat16, DType::kFloat32, 1.0, multiprocessors);
    case Wire::kBf16:
      return move_launch({{src, dst, count}}, DType::kBFloat16, DType::kFloat32, 1.0, multiprocessors);
    case Wire::kInt8:
      return int8_launch("rr_decode_int8", src, dst, count, multiprocessors);
    default:
      return move_launch({{src, dst, count}}, DType::kFloat32, DType::kFloat32, 1.0, multiprocessors);
  }
}

const std::vector<const char*>& kernel_names() {
#define RR_NAME(name, ...) #name,
  static const std::vector<const char*> names{RR_KERNELS(RR_NAME)};
#undef RR_NAME
  return names;
}

}  // namespace rr
