#include "operations/quick_result.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace rr {
namespace {

// Where the data of a rank's request are: in the request slot, or in the eager buffer that the request slot names.
const std::byte* data_of(const Resources& from, Ticket ticket, int rank, size_t nbytes) {
  const std::byte* payload = from.control.payload(ticket.request_slot, rank);
  if (nbytes <= kInlineNbytes) return payload;
  uint64_t buffer;
  std::memcpy(&buffer, payload, sizeof buffer);
  return from.control.eager(rank, static_cast<size_t>(buffer));
}

}  // namespace

void reduce_requests(const Resources& from, Ticket ticket, const RankMask& participants, const Reduction& reduction,
                     const std::byte* src, std::byte* dst, size_t count) {
  const size_t nbytes = count * itemsize(reduction.dtype);
  const void* few[64];  // 32 KB of stack for all ranks that there may be would not stay in the cache
  std::vector<const void*> many(from.size() > 64 ? static_cast<size_t>(from.size()) : 0);
  const void** const srcs = many.empty() ? few : many.data();
  size_t nsrc = 0;
  for (int r = 0; r < from.size(); ++r) {
    if (participants.test(r)) srcs[nsrc++] = r == from.rank ? src : data_of(from, ticket, r, nbytes);
  }
  void* out = dst;
  from.kernels.reduce(reduction, srcs, nsrc, &out, 1, count);
}

void compute_quick(const Resources& from, const Operation& operation, const RankMask& participants) {
  const Signature& s = operation.signature;
  if (operation.kind == Kind::kAllreduce) {
    reduce_requests(from, operation.ticket, participants, reduction_of(s, from.size()), operation.srcs[0].data,
                    operation.dsts[0].data, operation.srcs[0].count);
  } else if (operation.kind == Kind::kBroadcast && s.root != from.rank && s.nbytes != 0) {
    std::memcpy(operation.dsts[0].data, data_of(from, operation.ticket, s.root, s.nbytes), s.nbytes);
  }
}

}  // namespace rr
