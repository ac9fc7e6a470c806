#include "relay/operation_frames.h"

#include <cstring>

namespace rr {
namespace {

// What take_agreed() is told of each participant's request.
enum class Differs : uint8_t { kNothing, kRows, kSplits };

Differs what_differs(const Signature& one) {
  if (one.kind == Kind::kAlltoall) return Differs::kSplits;
  return is_ragged(one.kind) ? Differs::kRows : Differs::kNothing;
}

// Without what only ranks of one host have a use for.
Signature without_addresses(Signature signature) {
  signature.is_async = 0;
  if (signature.place == Place::kDevice) {
    const uint64_t gpu = signature.src.uid;
    signature.src = signature.dst = {};
    signature.src.uid = gpu;
    return signature;
  }
  signature.src = signature.dst = {};
  return signature;
}

size_t splits_nbytes(const Signature& signature, int size, Splits splits) {
  return splits == Splits::kWithin && signature.kind == Kind::kAlltoall ? static_cast<size_t>(size) * sizeof(uint64_t)
                                                                        : 0;
}

}  // namespace

void put(FrameWriter& out, const Negotiation& negotiation, Ticket ticket) {
  out.put(ticket.is_named() ? negotiation.names().stored_name(ticket) : std::string());
  out.put(ticket.is_named() ? uint64_t{0} : ticket.tag - 1);
}

OperationName take_operation(FrameParser& frame) {
  OperationName operation;
  operation.name = frame.take_text(kNameNbytes);
  operation.counter = take_counter(frame);
  return operation;
}

uint64_t take_counter(FrameParser& frame) { return frame.take_up_to(kRefused - 2); }

void check(const Signature& signature, int size, const FrameParser& frame) {
  const bool is_known = signature.kind <= Kind::kBarrier && static_cast<int>(signature.dtype) < kDTypeCount &&
                        static_cast<int>(signature.op) < kOpCount && static_cast<int>(signature.codec) < kCodecCount &&
                        signature.place <= Place::kDevice;
  frame.expect(is_known, "has a value that its field cannot have");
  frame.expect(signature.root >= -1 && signature.root < size, "has an unknown root");
  frame.expect(signature.tensors >= 1, "has no tensor");
  frame.expect(signature.kind != Kind::kAlltoall || size <= kAlltoallRanksMost, "has an alltoall of too many ranks");
  frame.expect(signature.kind != Kind::kBarrier || signature.nbytes == 0, "has too much data");
}

bool has_eager_payload(const Signature& signature, int rank, bool is_named) {
  if (is_named || signature.nbytes <= kInlineNbytes) return false;
  return signature.kind == Kind::kAllreduce || (signature.kind == Kind::kBroadcast && signature.root == rank);
}

void put_ranks(FrameWriter& out, const RankMask& ranks, int size) { out.put(ranks.words, RankMask::nbytes_of(size)); }

RankMask take_ranks(FrameParser& frame, int size) {
  RankMask ranks;
  std::memcpy(ranks.words, frame.take(RankMask::nbytes_of(size)), RankMask::nbytes_of(size));
  for (int r = size; r % 64 != 0; ++r) frame.expect(!ranks.test(r), "has unknown ranks");
  return ranks;
}

void put_requests(FrameWriter& out, const ControlSegment& control, Ticket ticket, const std::vector<int>& ranks,
                  Splits splits) {
  out.put(static_cast<uint32_t>(ranks.size()));
  Signature last;
  for (const int r : ranks) {
    const Signature signature = without_addresses(control.signature(ticket.request_slot, r));
    const bool is_new = r == ranks.front() || std::memcmp(&signature, &last, sizeof last) != 0;
    out.put(static_cast<uint16_t>(r));
    out.put(static_cast<uint16_t>(is_new ? 1 : 0));
    if (is_new) out.put(signature);
    out.put(control.splits(ticket.request_slot, r), splits_nbytes(signature, control.size(), splits));
    last = signature;
  }
}

std::vector<Negotiation::Recorded> take_requests(FrameParser& frame, int size, Splits splits) {
  std::vector<Negotiation::Recorded> requests(frame.take_up_to(static_cast<uint32_t>(size)));
  frame.expect(!requests.empty(), "has no request");
  const Signature* last = nullptr;
  for (Negotiation::Recorded& one : requests) {
    one.rank = frame.take<uint16_t>();
    frame.expect(one.rank < size, "has unknown ranks");
    const bool is_new = frame.take_up_to<uint16_t>(1) != 0;
    frame.expect(is_new || last != nullptr, "has no signature");
    one.signature = is_new ? frame.take<Signature>() : *last;
    check(one.signature, size, frame);
    one.nbytes = splits_nbytes(one.signature, size, splits);
    one.payload = frame.take(one.nbytes);
    last = &one.signature;
  }
  return requests;
}

void put_agreed(FrameWriter& out, const ControlSegment& control, Ticket ticket, const RankMask& participants,
                const std::vector<int>& receivers) {
  uint8_t all_can = UINT8_MAX;
  for (int r = 0; r < control.size(); ++r) {
    if (participants.test(r)) all_can &= control.signature(ticket.request_slot, r).can;
  }
  const Differs differs = what_differs(control.signature(ticket.request_slot, participants.first()));
  out.put(all_can);
  out.put(differs);
  if (differs == Differs::kNothing) return;
  for (int r = 0; r < control.size(); ++r) {
    if (!participants.test(r)) continue;
    const Signature& signature = control.signature(ticket.request_slot, r);
    out.put(signature.nbytes);
    out.put(signature.dims[0]);
    if (differs != Differs::kSplits) continue;
    for (const int to : receivers) out.put(control.splits(ticket.request_slot, r)[to]);
  }
}

std::vector<Negotiation::Recorded> take_agreed(FrameParser& frame, const Signature& own, const RankMask& participants,
                                               const std::vector<int>& receivers, int size, Columns& columns) {
  const uint8_t all_can = frame.take<uint8_t>();
  const Differs differs = frame.take_up_to(Differs::kSplits);
  frame.expect(differs == what_differs(own), "has rows that the operation has not, or lacks them");
  std::vector<Negotiation::Recorded> requests;
  for (int r = 0; r < size; ++r) {
    if (!participants.test(r)) continue;
    Negotiation::Recorded one;
    one.rank = r;
    one.signature = without_addresses(own);
    one.signature.can = all_can;
    if (differs != Differs::kNothing) {
      one.signature.nbytes = frame.take<uint64_t>();
      one.signature.dims[0] = frame.take<uint64_t>();
    }
    if (differs == Differs::kSplits) {
      std::vector<uint64_t>& splits = columns.emplace_back();
      while (splits.size() < receivers.size()) splits.push_back(frame.take<uint64_t>());
      one.payload = splits.data();
      one.nbytes = splits.size() * sizeof(uint64_t);
      one.columns = &receivers;
    }
    requests.push_back(one);
  }
  return requests;
}

}  // namespace rr
