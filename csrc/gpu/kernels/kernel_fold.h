// The n-input reduce: every source is read once, in rank order, every destination written once.
#pragma once

#include "gpu/kernels/kernel_number.h"
#include "gpu/kernels/kernel_walk.h"

namespace rr::kernel {

// A rule keeps the partial result of a group in a Part: begin() with the first source, add() the others, end().

// float16 and bfloat16 in float, rounded once.
template <class Format>
struct FloatRule {
  using Value = typename Format::Value;
  static constexpr unsigned kNbytes = Format::kNbytes;
  static constexpr unsigned kElements = kGroupNbytes / kNbytes;
  static constexpr unsigned kAtOnce = 2, kBlocks = kFoldBlocks;
  struct Part {
    Value at[kElements];
  };
  Value prescale, postscale;
  FoldOp op;

  RR_HD explicit FloatRule(const TableHead& head)
      : prescale(static_cast<Value>(head.prescale)), postscale(static_cast<Value>(head.postscale)), op(head.op) {}

  RR_HD Part begin(const Words<kGroupNbytes>& group) const {
    Part part;
    unpack<Format, kElements>(group, part.at);
    RR_UNROLL
    for (unsigned j = 0; j < kElements; ++j) part.at[j] *= prescale;
    return part;
  }
  RR_HD void add(Part& part, const Words<kGroupNbytes>& group) const {
    switch (op) {
      case kProduct:
        return each(part, group, [](Value a, Value b) { return a * b; });
      case kMin:  // the first NaN wins
        return each(part, group, [](Value a, Value b) { return (a < b) | (a != a) ? a : b; });
      case kMax:
        return each(part, group, [](Value a, Value b) { return (a > b) | (a != a) ? a : b; });
      default:
        return each(part, group, [](Value a, Value b) { return a + b; });
    }
  }
  RR_HD Words<kGroupNbytes> end(Part& part) const {
    RR_UNROLL
    for (unsigned j = 0; j < kElements; ++j) part.at[j] *= postscale;
    return pack<Format, kElements>(part.at);
  }

 private:
  template <class Combine>
  RR_HD void each(Part& part, const Words<kGroupNbytes>& group, const Combine& combine) const {
    RR_UNROLL
    for (unsigned j = 0; j < kElements; j += Format::kValues) {
      Value values[Format::kValues];
      Format::unpack(group.at + j / Format::kValues * Format::kWords, values);
      RR_UNROLL
      for (unsigned i = 0; i < Format::kValues; ++i) part.at[j + i] = combine(part.at[j + i], values[i] * prescale);
    }
  }
};

// Integers and bool, which wrap around. They stay packed: their elements would take a register each.
template <unsigned kElementNbytes>
struct BitsRule {
  using U = Unsigned<kElementNbytes>;
  static constexpr unsigned kNbytes = kElementNbytes;
  static constexpr unsigned kElements = kGroupNbytes / kNbytes;
  static constexpr unsigned kAtOnce = 2, kBlocks = kFoldBlocks;
  using Part = Words<kGroupNbytes>;
  FoldOp op;
  bool truth;

  RR_HD explicit BitsRule(const TableHead& head) : op(head.op), truth(head.truth != 0) {}

  RR_HD Part begin(const Words<kGroupNbytes>& group) const {
    return truth ? each(group, group, [](U a, U) { return static_cast<U>(a != 0); }) : group;
  }
  RR_HD void add(Part& part, const Words<kGroupNbytes>& group) const {
    const Part next = begin(group);
    constexpr U kSign =
        static_cast<U>(U{1} << (8 * kNbytes - 1));  // flipped, signed numbers are ordered as unsigned ones
    switch (op) {
      case kProduct:  // in 64 bits: int, to which short types are promoted, may overflow
        part = each(part, next, [](U a, U b) { return static_cast<U>(uint64_t{a} * b); });
        return;
      case kAnd:
        part = each(part, next, [](U a, U b) { return static_cast<U>(a & b); });
        return;
      case kOr:
        part = each(part, next, [](U a, U b) { return static_cast<U>(a | b); });
        return;
      case kMin:
        part = each(part, next, [](U a, U b) { return a < b ? a : b; });
        return;
      case kMax:
        part = each(part, next, [](U a, U b) { return a > b ? a : b; });
        return;
      case kMinSigned:
        part = each(part, next, [](U a, U b) { return (a ^ kSign) < (b ^ kSign) ? a : b; });
        return;
      case kMaxSigned:
        part = each(part, next, [](U a, U b) { return (a ^ kSign) > (b ^ kSign) ? a : b; });
        return;
      default:
        part = each(part, next, [](U a, U b) { return static_cast<U>(a + b); });
    }
  }
  RR_HD Words<kGroupNbytes> end(const Part& part) const { return part; }

 private:
  template <class Combine>
  static RR_HD Part each(const Part& part, const Part& next, const Combine& combine) {
    Part result{};
    RR_UNROLL
    for (unsigned j = 0; j < kElements; ++j) put<U>(result, j, combine(get<U>(part, j), get<U>(next, j)));
    return result;
  }
};

template <class Rule>
struct Fold {
  static constexpr unsigned kBlocks = Rule::kBlocks;
  static constexpr unsigned kNbytes = Rule::kNbytes;

  // While a source is folded the next one is under way.
  template <class Groups>
  static RR_HD void fold(const Rule& rule, const FoldItem& item, const uint64_t* pointer, const Groups& groups) {
    constexpr unsigned kGroups = Groups::kGroups;
    Words<kGroupNbytes> now[kGroups]{}, next[kGroups]{};
    typename Rule::Part parts[kGroups]{};
    RR_NO_UNROLL
    for (uint32_t s = 0; s <= item.nsrc; ++s) {
      if (s < item.nsrc) groups.template load<kNbytes>(pointer[s], next);
      RR_UNROLL
      for (unsigned k = 0; k < kGroups; ++k) {
        if (s == 1) parts[k] = rule.begin(now[k]);
        if (s > 1) rule.add(parts[k], now[k]);
        now[k] = next[k];
      }
    }
    RR_UNROLL
    for (unsigned k = 0; k < kGroups; ++k) now[k] = rule.end(parts[k]);
    RR_NO_UNROLL
    for (uint32_t d = 0; d < item.ndst; ++d) groups.template store<kNbytes>(pointer[item.nsrc + d], now);
  }

  static RR_HD void run(const Table& table, const Where& where) {
    walk<FoldItem, Rule::kElements, Rule::kAtOnce>(table, where, [&](const FoldItem& item, const auto& groups) {
      const Rule rule(table.head());  // read again each time: that is cheap, registers are not
      fold(rule, item, table.pointers() + item.pointer, groups);
    });
  }
};

}  // namespace rr::kernel
