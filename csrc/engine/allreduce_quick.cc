// Group: the synchronous all-reduce of a few bytes. Announce, look at the others' requests, compute: no allocation and
// no table.

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

bool Group::allreduce_quick(const TensorView& src, const TensorView& dst, const Reduction& reduction,
                            Interrupt interrupt, Codec codec) {
  const size_t nbytes = src.nbytes();
  if (nbytes > control_.header().eager_nbytes || nbytes != dst.nbytes() || src.dtype != dst.dtype) return false;
  if (src.place == Place::kDevice || dst.place == Place::kDevice) return false;
  context_.throw_if_shut_down();
  throw_if_failed();
  check(reduction);
  check(codec, reduction);
  const bool eager = nbytes > control_.inline_nbytes();
  Signature signature;
  signature.kind = Kind::kAllreduce;
  signature.dtype = src.dtype;
  signature.op = reduction.op;
  signature.ndim = src.ndim;
  signature.prescale = reduction.prescale;
  signature.postscale = reduction.postscale;
  signature.codec = codec;  // agreed, and not used: what goes in a request slot goes as it is
  signature.nbytes = nbytes;
  std::copy(std::begin(src.dims), std::end(src.dims), signature.dims);

  Locked submitted = submitted_.lock();
  record_thread(submitted);
  throw_if_closed(Kind::kAllreduce);
  if (!submitted->pending.unnamed().has_room(eager)) return false;
  const uint64_t number = submitted->calls.record(Kind::kAllreduce, nullptr);
  context_.deadlock_timeout().record_call();
  add(context_.stats().operations, 1);
  const Ticket ticket = submitted->pending.unnamed().announce(signature, src.data, nbytes, eager);
  submitted.unlock();
  negotiation_.ring_waiters();

  RankMask participants;
  bool complete = false;
  for (int turn = 0; turn < (crowded_ ? 1 : 64) && !complete; ++turn) {
    if (turn != 0) relax(false);
    participants = RankMask();
    complete = negotiation_.is_settled(ticket, &participants);
  }
  Operation operation;
  operation.kind = Kind::kAllreduce;
  operation.ticket = ticket;
  operation.quick = true;
  if (complete) {
    pass_on();
  } else {
    operation.number = number;
    operation.submitted_ns = now_ns();
    try {
      wait_until_finished(operation, -1, interrupt);
    } catch (...) {
      // The request stands, so somebody must consume it when it is complete; its result has nowhere to go.
      auto orphan = std::make_shared<Operation>();
      orphan->kind = Kind::kAllreduce;
      orphan->ticket = ticket;
      orphan->number = operation.number;
      orphan->submitted_ns = operation.submitted_ns;
      orphan->quick = orphan->discard = true;
      submitted_.lock()->pending.unnamed().add(orphan);
      throw;
    }
    pass_on();  // the last rank's request may have come to this one first
    participants = RankMask();
    negotiation_.is_settled(ticket, &participants);
  }
  const bool agreed = negotiation_.feasible(ticket, participants);
  if (agreed) {
    operation.signature = signature;
    reduce_requests(resources_, ticket, participants, reduction, src.data, dst.data, src.count);
  }
  const std::string text = agreed ? "" : negotiation_.mismatch(ticket, participants);
  submitted_.lock()->pending.unnamed().consume(ticket);
  if (!agreed) throw MismatchError(text + " " + where(operation));
  add(context_.stats().one_shot, 1);
  add(context_.stats().bytes_moved, nbytes);
  return true;
}

}  // namespace rr
