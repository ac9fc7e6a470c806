#include "engine/group/quick_allreduce.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "engine/context.h"
#include "operations/moved_bytes.h"
#include "operations/quick_result.h"
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
  parts_.throw_if_failed(Kind::kAllreduce, nullptr);
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
  deadlock_watch_.record_thread(submitted);
  joining_.throw_if_closed(Kind::kAllreduce);
  if (!submitted->pending.unnamed().has_room(eager)) return false;
  const uint64_t number = submitted->calls.record(Kind::kAllreduce, nullptr);
  parts_.context.deadlock_timeout().record_call();
  const Ticket ticket = submitted->pending.unnamed().announce(signature, src.data, nbytes, eager);
  parts_.negotiation.segment().ring_waiters();
  add(parts_.from.stats.operations, 1);  // while the others answer: it takes 5 ns

  // The lock is held for these looks (2 to 3 us) and what is computed then, since to take it again takes 13 ns.
  Call call{src, dst, reduction, signature, ticket, number, RankMask(parts_.from.size())};
  bool complete = false;
  // The wait sends a leader's request: until then nothing that it looks for can come.
  const int turns = relay_.exists() ? 0 : parts_.ranks_outnumber_cores ? 1 : 64;
  for (int turn = 0; turn < turns && !complete; ++turn) {
    if (turn != 0) relax(false);
    complete = parts_.negotiation.requests().is_settled(ticket, &call.participants);
  }
  if (complete && !is_recorded) {
    std::string mismatch;
    const bool agreed = compute(call, mismatch);
    submitted->pending.unnamed().consume(ticket);
    submitted.unlock();
    relay_.tell_rest();
    if (!agreed) refuse(call, mismatch);
  } else {
    submitted.unlock();
    finish_as_operation(call, complete, called, interrupt);
  }
  add(parts_.from.stats.one_shot, 1);
  count_moved(parts_.from.stats, Kind::kAllreduce, nbytes, parts_.from.size());
  return true;
}

void QuickAllreduce::describe(const Call& call, Operation& operation) {
  operation.kind = Kind::kAllreduce;
  operation.ticket = call.ticket;
  operation.quick = true;
  operation.number = call.number;
  operation.signature = call.signature;
}

void QuickAllreduce::finish_as_operation(Call& call, bool is_complete, int64_t called, Interrupt interrupt) {
  const bool is_recorded = called != 0;
  Operation operation;
  describe(call, operation);
  if (is_recorded) {
    record_call(parts_.from, operation);
    operation.recorded.in_cycles = parts_.from.recorder.counts_cycles();
  }
  if (!is_complete) {
    operation.submitted_ns = now_ns();
    if (operation.recorded.in_cycles) {  // the wait may be long, and a count is good for a short time
      called = parts_.from.recorder.ns_of(called);
      operation.recorded.in_cycles = false;
    }
    await(operation, called, interrupt);
    parts_.negotiation.requests().is_settled(call.ticket, &call.participants);
  }
  relay_.tell_rest();  // the last rank's request may have come to this one first
  if (is_recorded) {
    operation.submitted_ns = called;
    const bool is_eager = call.signature.nbytes > kInlineNbytes;
    const bool in_cycles = operation.recorded.in_cycles;
    record_start(operation, !is_eager ? RecordedCall::kAtItsEnd : in_cycles ? parts_.from.recorder.moment() : now_ns());
  }
  std::string mismatch;
  const bool agreed = compute(call, mismatch);
  record_end(parts_.from, operation, !agreed);
  parts_.submitted.lock()->pending.unnamed().consume(call.ticket);
  if (!agreed) refuse(call, mismatch);
}

void QuickAllreduce::await(Operation& operation, int64_t called, Interrupt interrupt) {
  try {
    const RecordedWait recorded(parts_.from, operation);
    waiter_.wait_until_finished(operation, -1, interrupt);
  } catch (...) {
    const int64_t submitted_ns = std::exchange(operation.submitted_ns, called);
    record_end(parts_.from, operation, true);
    // The request stands, so somebody must consume it when it is complete; its result has nowhere to go.
    auto orphan = std::make_shared<Operation>();
    orphan->kind = Kind::kAllreduce;
    orphan->ticket = operation.ticket;
    orphan->number = operation.number;
    orphan->submitted_ns = submitted_ns;
    orphan->quick = orphan->discard = true;
    parts_.submitted.lock()->pending.unnamed().add(orphan);
    relay_.hand_over();
    throw;
  }
}

bool QuickAllreduce::compute(const Call& call, std::string& mismatch) const {
  const Requests& requests = parts_.negotiation.requests();
  if (!requests.feasible(call.ticket, call.participants)) {
    mismatch = requests.mismatch(call.ticket, call.participants);
    return false;
  }
  reduce_requests(parts_.from, call.ticket, call.participants, call.reduction, call.src.data, call.dst.data,
                  call.src.count);
  return true;
}

void QuickAllreduce::refuse(const Call& call, const std::string& mismatch) const {
  Operation operation;
  describe(call, operation);
  throw MismatchError(mismatch + " " + parts_.from.where(operation));
}

}  // namespace rr
