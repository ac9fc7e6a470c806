// Pack, unpack, scale and cast: a list of (source, destination) pairs.
#pragma once

#include <type_traits>

#include "gpu/kernels/kernel_number.h"
#include "gpu/kernels/kernel_walk.h"

namespace rr::kernel {

// Elements as they are, whatever they mean.
template <unsigned kNbytes>
struct Copied {
  static constexpr unsigned kSrcNbytes = kNbytes, kDstNbytes = kNbytes;
  static constexpr unsigned kElements = kGroupNbytes / kNbytes;
  RR_HD explicit Copied(const TableHead&) {}
  RR_HD Words<kGroupNbytes> operator()(const Words<kGroupNbytes>& group) const { return group; }
};

// factor * element, rounded to the other type: the product in float, in double where one of them is double.
template <class From, class To>
struct Cast {
  static constexpr unsigned kSrcNbytes = From::kNbytes, kDstNbytes = To::kNbytes;
  static constexpr unsigned kElements = kGroupNbytes / (kSrcNbytes > kDstNbytes ? kSrcNbytes : kDstNbytes);
  using Value = decltype(typename From::Value() + typename To::Value());
  Value factor;

  RR_HD explicit Cast(const TableHead& head) : factor(static_cast<Value>(head.prescale)) {}
  RR_HD Words<kElements * kDstNbytes> operator()(const Words<kElements * kSrcNbytes>& group) const {
    Value values[kElements];
    unpack<From, kElements>(group, values);
    RR_UNROLL
    for (unsigned j = 0; j < kElements; ++j) values[j] *= factor;
    return pack<To, kElements>(values);
  }
};

template <class Change>
struct Move {
  static constexpr unsigned kBlocks = kMoveBlocks;
  static constexpr unsigned kAtOnce = 4;  // loads of a thread under way
  static constexpr unsigned kElements = Change::kElements;

  static RR_HD void run(const Table& table, const Where& where) {
    const Change change(table.head());
    walk<MoveItem, kElements, kAtOnce>(table, where, [&](const MoveItem& item, const auto& groups) {
      constexpr unsigned kGroups = std::decay_t<decltype(groups)>::kGroups;
      Words<kElements * Change::kSrcNbytes> from[kGroups];
      Words<kElements * Change::kDstNbytes> to[kGroups];
      groups.template load<Change::kSrcNbytes>(item.src, from);
      RR_UNROLL
      for (unsigned k = 0; k < kGroups; ++k) to[k] = change(from[k]);
      groups.template store<Change::kDstNbytes>(item.dst, to);
    });
  }
};

}  // namespace rr::kernel
