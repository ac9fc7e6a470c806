#include "data/wire.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "data/reduction.h"

namespace rr {

const char* name(Wire wire) {
  switch (wire) {
#define RR_CASE(id, text, nbits) \
  case Wire::id:                 \
    return text;
    RR_WIRES(RR_CASE)
#undef RR_CASE
  }
  return "?";
}

Wire wire_from_name(std::string_view text) {
  if (text.empty()) return Wire::kNone;
  std::string known;
  for (int code = 0; code < kWireCount; ++code) {
    const auto wire = static_cast<Wire>(code);
    if (text == name(wire)) return wire;
    known += (code != 0 ? ", " : "") + std::string(name(wire));
  }
  throw InvalidArgumentError("there is no wire codec named \"" + std::string(text) + "\"; the names are " + known);
}

Wire wire_from_code(int code) {
  if (code < 0 || code >= kWireCount) {
    throw InvalidArgumentError("wire codec " + std::to_string(code) + " is unknown; the codes are 0 (" +
                               name(Wire::kNone) + ") to " + std::to_string(kWireCount - 1) + " (" +
                               name(static_cast<Wire>(kWireCount - 1)) + ")");
  }
  return static_cast<Wire>(code);
}

void wire_round_trip(const Kernels& kernels, Wire wire, void* elements, size_t count) {
  constexpr size_t kPiece = 16 * kWireBlock;  // stays in the first cache
  std::byte encoded[wire_nbytes(Wire::kNone, kPiece)];
  std::byte* at = static_cast<std::byte*>(elements);
  for (size_t done = 0; done < count; done += kPiece) {
    const size_t n = std::min(kPiece, count - done);
    kernels.encode(wire, at, encoded, n);
    kernels.decode(wire, encoded, at, n);
    at += n * sizeof(float);
  }
}

}  // namespace rr
