// Where in a control segment the requests for an operation are.
#pragma once

#include <cstdint>

#include "negotiation/segment/control_segment.h"

namespace rr {

struct Ticket {
  uint64_t request_slot = 0;
  uint64_t tag = 0;  // 0: no operation
  bool is_named() const { return request_slot >= kUnnamedSlots; }
  static Ticket unnamed(uint64_t counter) { return {counter % kUnnamedSlots, counter + 1}; }
};

}  // namespace rr
