#include "gpu/cuda/launch/tables.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/errors.h"
#include "gpu/cuda/launch/table_builder.h"
#include "gpu/kernels/kernel_list.h"

namespace rr {
namespace {

using kernel::FoldItem;
using kernel::FoldOp;
using kernel::kGroupNbytes;
using kernel::MoveItem;
using kernel::TableHead;

uint64_t address(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

bool is_floating(DType dtype) { return dtype <= DType::kFloat64; }

// The name in kernel_list.h: what a kernel does, and for what.
const char* kernel_named(const std::string& name) {
  for (const char* known : kernel_names()) {
    if (name == known) return known;
  }
  throw InternalError("there is no kernel " + name);
}

MoveItem move_item(const std::byte* src, std::byte* dst) {
  MoveItem item;
  item.src = address(src);
  item.dst = address(dst);
  return item;
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
  TableBuilder<MoveItem> table(elements);
  for (const DevicePart& part : parts) {
    if (part.count == 0) continue;
    const auto shift = shift_of(address(part.src), element, elements);
    const bool alike = shift == shift_of(address(part.dst), element, elements);
    table.add(move_item(part.src, part.dst), part.count * nbytes_each / element, alike ? shift : std::nullopt);
  }
  return table.launch(kernel_named("rr_copy_" + std::to_string(element)), TableHead(),
                      multiprocessors * kernel::kMoveBlocks);
}

Launch cast_launch(const std::vector<DevicePart>& parts, DType from, DType to, double factor,
                   unsigned multiprocessors) {
  const size_t elements = kGroupNbytes / std::max(itemsize(from), itemsize(to));
  TableBuilder<MoveItem> table(elements);
  for (const DevicePart& part : parts) {
    if (part.count == 0) continue;
    const auto shift = shift_of(address(part.src), itemsize(from), elements);
    const bool alike = shift == shift_of(address(part.dst), itemsize(to), elements);
    table.add(move_item(part.src, part.dst), part.count, alike ? shift : std::nullopt);
  }
  TableHead head;
  head.prescale = factor;
  return table.launch(kernel_named(std::string("rr_move_") + name(from) + "_" + name(to)), head,
                      multiprocessors * kernel::kMoveBlocks);
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

// Which kernel folds, and what it is told of the reduction.
struct FoldRule {
  std::string kernel;
  TableHead head;
  unsigned blocks = kernel::kFoldBlocks;  // of a multiprocessor
};

FoldRule fold_rule(const Reduction& reduction) {
  FoldRule rule;
  TableHead& head = rule.head;
  head.op = fold_op(reduction);
  head.prescale = reduction.prescale;
  head.postscale = reduction.postscale;
  head.divisor = reduction.op == ReduceOp::kAverage ? reduction.divisor : 1;
  const size_t element = itemsize(reduction.dtype);
  rule.kernel = "rr_fold_" + std::to_string(element);
  if (is_floating(reduction.dtype)) {
    rule.kernel = std::string("rr_fold_") + name(reduction.dtype);
    head.postscale = reduction.postscale / head.divisor;
  } else if (reduction.dtype == DType::kBool) {
    const bool all = reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kProduct ||
                     reduction.op == ReduceOp::kLogicalAnd || reduction.op == ReduceOp::kBitwiseAnd;
    head.op = all ? kernel::kAnd : kernel::kOr;
    head.truth = 1;
  } else if (reduction.op == ReduceOp::kAverage || reduction.prescale != 1.0 || reduction.postscale != 1.0) {
    // The kernels for wide types know the sign from their type. Which sums double holds exactly:
    // data/kernels/kernels_wide.h.
    const bool in_double = reduction.op == ReduceOp::kProduct ? reduction.prescale != 1.0 : element <= 4;
    rule.kernel = std::string(in_double ? "rr_wide_" : "rr_exact_") + name(reduction.dtype);
    rule.blocks = kernel::kWideBlocks;
    if (head.op == kernel::kMinSigned) head.op = kernel::kMin;
    if (head.op == kernel::kMaxSigned) head.op = kernel::kMax;
  } else {
    head.truth = reduction.op == ReduceOp::kLogicalAnd || reduction.op == ReduceOp::kLogicalOr;
  }
  return rule;
}

// float32 to what travels, or back.
Launch codec_launch(Codec codec, bool encodes, const std::byte* src, std::byte* dst, size_t count,
                    unsigned multiprocessors) {
  if (codec == Codec::kScaledFp16) throw InternalError("GPUs have no kernel for scaled_fp16");
  if (codec == Codec::kInt8) {
    TableBuilder<MoveItem> table(kCodecBlock / kernel::kWarpSize);  // a warp handles a block, which has one scale
    table.add(move_item(src, dst), count, std::nullopt);
    return table.launch(kernel_named(encodes ? "rr_encode_int8" : "rr_decode_int8"), TableHead(),
                        multiprocessors * kernel::kMoveBlocks);
  }
  const DType narrow = codec == Codec::kFp16   ? DType::kFloat16
                       : codec == Codec::kBf16 ? DType::kBFloat16
                                               : DType::kFloat32;
  const DType from = encodes ? DType::kFloat32 : narrow;
  const DType to = encodes ? narrow : DType::kFloat32;
  return move_launch({{src, dst, count}}, from, to, 1.0, multiprocessors);
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
  const FoldRule rule = fold_rule(reduction);
  const size_t element = itemsize(reduction.dtype);
  const size_t elements = kGroupNbytes / element;
  TableBuilder<FoldItem> table(elements);
  std::vector<uint64_t> pointers;
  for (const DeviceFold& fold : folds) {
    if (fold.count == 0) continue;
    if (fold.srcs.empty()) throw InternalError("a fold of no sources");
    FoldItem item;
    item.pointer = static_cast<uint32_t>(pointers.size());
    item.nsrc = static_cast<uint32_t>(fold.srcs.size());
    item.ndst = static_cast<uint32_t>(fold.dsts.size());
    for (const std::byte* src : fold.srcs) pointers.push_back(address(src));
    for (const std::byte* dst : fold.dsts) pointers.push_back(address(dst));
    const auto shift = shift_of(pointers[item.pointer], element, elements);
    const bool alike = std::all_of(pointers.begin() + item.pointer, pointers.end(),
                                   [&](uint64_t pointer) { return shift_of(pointer, element, elements) == shift; });
    table.add(item, fold.count, alike ? shift : std::nullopt);
  }
  return table.launch(kernel_named(rule.kernel), rule.head, multiprocessors * rule.blocks, pointers);
}

Launch encode_launch(Codec codec, const std::byte* src, std::byte* dst, size_t count, unsigned multiprocessors) {
  return codec_launch(codec, true, src, dst, count, multiprocessors);
}

Launch decode_launch(Codec codec, const std::byte* src, std::byte* dst, size_t count, unsigned multiprocessors) {
  return codec_launch(codec, false, src, dst, count, multiprocessors);
}

const std::vector<const char*>& kernel_names() {
#define RR_NAME(name, ...) #name,
  static const std::vector<const char*> names{RR_KERNELS(RR_NAME)};
#undef RR_NAME
  return names;
}

}  // namespace rr
