// How leaders speak of an operation and of the requests for it.
//
// An operation goes by its name, or by its number if it has none: each host has slots and generations of its own for
// names.
#pragma once

#include <string>
#include <vector>

#include "negotiation/negotiation.h"
#include "relay/frames.h"

namespace rr {

struct OperationName {
  std::string name;      // as the name table stores it; "": none
  uint64_t counter = 0;  // of an operation without a name
  bool is_named() const { return !name.empty(); }
};

void put(FrameWriter& out, const Negotiation& negotiation, Ticket ticket);
OperationName take_operation(FrameParser& frame);
// A number of operations.
uint64_t take_counter(FrameParser& frame);

// What a signature may have without this host reading or writing what is not there.
void check(const Signature& signature, int size, const FrameParser& frame);

// Whether the operation's data lie in the rank's eager buffer; then its request slot holds the buffer's index.
bool has_eager_payload(const Signature& signature, int rank, bool is_named);

// Ranks of a group of `size`.
void put_ranks(FrameWriter& out, const RankMask& ranks, int size);
RankMask take_ranks(FrameParser& frame, int size);

// Of an alltoall: an operation that is refused needs none.
enum class Splits : uint8_t { kLeftOut, kWithin };

// Requests of `ranks`, which lie in the control segment. Equal signatures travel once; no payload does.
void put_requests(FrameWriter& out, const ControlSegment& control, Ticket ticket, const std::vector<int>& ranks,
                  Splits splits);
// The splits that they point to are in the frame.
std::vector<Negotiation::Recorded> take_requests(FrameParser& frame, int size, Splits splits);

// What the ranks of a host need to know of the requests of other hosts' ranks for an operation whose requests agree:
// the bytes and rows of each rank where those may differ, an alltoall's rows for this host, and of operands on GPUs
// what all of them allow. The rest is as in their own requests.
void put_agreed(FrameWriter& out, const ControlSegment& control, Ticket ticket, const RankMask& participants,
                const std::vector<int>& receivers);
// Memory for the splits that the requests point to.
using Columns = std::vector<std::vector<uint64_t>>;
std::vector<Negotiation::Recorded> take_agreed(FrameParser& frame, const Signature& own, const RankMask& participants,
                                               const std::vector<int>& receivers, int size, Columns& columns);

}  // namespace rr
