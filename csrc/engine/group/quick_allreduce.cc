#include "engine/group/quick_allreduce.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "engine/context.h"
#include "operations/moved_bytes.h"
#include "operations/recording.h"

namespace rr {

bool QuickAllreduce::run(const TensorView& src, const TensorView& dst, const Reduction& reduction, Interrupt interrupt,
                         Codec codec) {
  const bool is_recorded = parts_.from.recorder.is_on();
  int64_t called = is_recorded ? parts_.from.recorder.moment_of_call() : 0;
  const size_t nbytes = src.nbytes();
  if (nbytes > parts_.control().header().eager_nbytes || nbytes != dst.nbytes() || src.dtype != dst.dtype) return false;
  if (src.place == Place::kDevice || dst.place == Place::kDevice) return false;
  parts_.context.throw_if_shut_down();
  parts_.throw_if_failed();
  check(reduction);
  check(codec, reduction);
  const bool eager = nbytes > kInlineNbytes;
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

  auto submitted = parts_.submitted.lock();
  waiter_.record_thread(submitted);
  joining_.throw_if_closed(Kind::kAllreduce);
  if (!submitted->pending.unnamed().has_room(eager)) return false;
  const uint64_t number = submitted->calls.record(Kind::kAllreduce, nullptr);
  parts_.context.deadlock_timeout().record_call();
  add(parts_.from.stats.operations, 1);
  const Ticket ticket = submitted->pending.unnamed().announce(signature, src.data, nbytes, eager);
  submitted.unlock();
  parts_.negotiation.segment().ring_waiters();

  RankMask participants;
  bool complete = false;
  // The wait sends a leader's request: until then nothing that it looks for can come.
  const int turns = relay_.exists() ? 0 : parts_.ranks_outnumber_cores ? 1 : 64;
  for (int turn = 0; turn < turns && !complete; ++turn) {
    if (turn != 0) relax(false);
    complete = parts_.negotiation.requests().is_settled(ticket, &participants);
  }
  // Made where it is needed: it has six vectors and a string, and most calls of a few bytes need none of them.
  std::optional<Operation> made;
  const auto operation_of = [&]() -> Operation& {
    if (made) return *made;
    Operation& operation = made.emplace();
    operation.kind = Kind::kAllreduce;
    operation.ticket = ticket;
    operation.quick = true;
    operation.number = number;
    operation.signature = signature;
    return operation;
  };
  if (is_recorded) {
    Operation& operation = operation_of();
    record_call(parts_.from, operation);
    operation.recorded.in_cycles = parts_.from.recorder.counts_cycles();
  }
  if (complete) {
    relay_.tell_rest();
  } else {
    Operation& operation = operation_of();
    operation.submitted_ns = now_ns();
    if (operation.recorded.in_cycles) {  // the wait may be long, and a count is good for a short time
      called = parts_.from.recorder.ns_of(called);
      operation.recorded.in_cycles = false;
    }
    try {
      const RecordedWait recorded(parts_.from, operation);
      waiter_.wait_until_finished(operation, -1, interrupt);
    } catch (...) {
      const int64_t submitted_ns = std::exchange(operation.submitted_ns, called);
      record_end(parts_.from, operation, true);
      // The request stands, so somebody must consume it when it is complete; its result has nowhere to go.
      auto orphan = std::make_shared<Operation>();
      orphan->kind = Kind::kAllreduce;
      orphan->ticket = ticket;
      orphan->number = operation.number;
      orphan->submitted_ns = submitted_ns;
      orphan->quick = orphan->discard = true;
      parts_.submitted.lock()->pending.unnamed().add(orphan);
      relay_.hand_over();
      throw;
    }
    relay_.tell_rest();  // the last rank's request may have come to this one first
    parts_.negotiation.requests().is_settled(ticket, &participants);
  }
  if (is_recorded) {
    Operation& operation = operation_of();
    operation.submitted_ns = called;
    const bool in_cycles = operation.recorded.in_cycles;
    record_start(operation, !eager ? RecordedCall::kAtItsEnd : in_cycles ? parts_.from.recorder.moment() : now_ns());
  }
  const bool agreed = parts_.negotiation.requests().feasible(ticket, participants);
  if (agreed) {
    reduce_requests(parts_.from, ticket, participants, reduction, src.data, dst.data, src.count);
  }
  if (made) record_end(parts_.from, *made, !agreed);
  const std::string text = agreed ? "" : parts_.negotiation.requests().mismatch(ticket, participants);
  parts_.submitted.lock()->pending.unnamed().consume(ticket);
  if (!agreed) throw MismatchError(text + " " + parts_.from.where(operation_of()));
  add(parts_.from.stats.one_shot, 1);
  count_moved(parts_.from.stats, Kind::kAllreduce, nbytes, parts_.from.size());
  return true;
}

}  // namespace rr
