// From a list of items to a launch with its table.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "gpu/cuda/launch/tables.h"

namespace rr {

// How many elements an operand lies past the beginning of a group; nothing if it is at no multiple of an element's
// size. elements: of a group.
inline std::optional<unsigned> shift_of(uint64_t at, size_t element_nbytes, size_t elements) {
  if (at % element_nbytes != 0) return std::nullopt;
  return static_cast<unsigned>(at / element_nbytes % elements);
}

// Item: MoveItem or FoldItem.
template <class Item>
class TableBuilder {
 public:
  // elements: of a group.
  explicit TableBuilder(size_t elements) : piece_elements_(kernel::kWarpSize * elements) {}

  // shift: that of all the item's operands; nothing: they do not lie alike.
  void add(Item item, uint64_t count, std::optional<unsigned> shift) {
    if (count >= uint64_t{1} << kernel::Extent::kShiftAt) {
      throw InvalidArgumentError("a tensor of 2^58 elements or more");
    }
    item.extent = kernel::Extent::of(npieces_, count, shift.value_or(0), shift.has_value());
    npieces_ += (count + shift.value_or(0) + piece_elements_ - 1) / piece_elements_;
    items_.push_back(item);
  }

  // name: one of kernel_names(). most_blocks: how many the launch may have.
  Launch launch(const char* name, kernel::TableHead head, unsigned most_blocks,
                const std::vector<uint64_t>& pointers = {}) {
    Launch launch;
    launch.kernel = name;
    launch.block = kernel::kBlock;
    if (npieces_ == 0) return launch;
    launch.grid =
        static_cast<unsigned>(std::min<uint64_t>(most_blocks, (npieces_ + kernel::kWarps - 1) / kernel::kWarps));
    const uint64_t share = npieces_ / launch.grid;
    if (share >= std::numeric_limits<uint32_t>::max()) {
      throw InvalidArgumentError("a list of 2^40 bytes or more a block");
    }
    head.share = static_cast<uint32_t>(share);
    head.longer = static_cast<uint32_t>(npieces_ % launch.grid);
    head.nitems = static_cast<uint32_t>(items_.size());
    const std::vector<uint32_t> starts = items_.size() > 1 ? first_items(launch.grid, head) : std::vector<uint32_t>();
    items_.emplace_back().extent.first = npieces_;

    reserve(launch.table, sizeof head);
    head.items = append(launch.table, items_);
    head.starts = append(launch.table, starts);
    head.pointers = append(launch.table, pointers);
    std::memcpy(launch.table.data(), &head, sizeof head);
    return launch;
  }

 private:
  // The item that each block begins in.
  std::vector<uint32_t> first_items(unsigned grid, const kernel::TableHead& head) const {
    std::vector<uint32_t> starts;
    uint32_t at = 0;
    for (unsigned block = 0; block < grid; ++block) {
      const uint64_t piece = uint64_t{block} * head.share + std::min(block, head.longer);
      while (at + 1 < items_.size() && items_[at + 1].extent.first <= piece) ++at;
      starts.push_back(at);
    }
    return starts;
  }

  // Makes room at the end; where.
  static uint32_t reserve(std::vector<std::byte>& table, size_t nbytes) {
    const size_t at = table.size();
    if (at + nbytes > std::numeric_limits<uint32_t>::max()) throw InvalidArgumentError("a list of too many tensors");
    table.resize((at + nbytes + 15) / 16 * 16);
    return static_cast<uint32_t>(at);
  }
  // Where they are; 0 if there are none.
  template <class Value>
  static uint32_t append(std::vector<std::byte>& table, const std::vector<Value>& values) {
    if (values.empty()) return 0;
    const size_t nbytes = values.size() * sizeof(Value);
    const uint32_t at = reserve(table, nbytes);
    std::memcpy(table.data() + at, values.data(), nbytes);
    return at;
  }

  uint64_t piece_elements_;
  uint64_t npieces_ = 0;
  std::vector<Item> items_;
};

}  // namespace rr
