// Group: how operations end. Quick ones are computed here, from the request slots; all are accounted for here.

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

// The synchronous all-reduce of a few bytes: announce, look at the others' request slots, compute. No allocation, no
// table.
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

  std::unique_lock lock(mutex_);
  record_thread(lock);
  throw_if_closed(Kind::kAllreduce);
  if (!unnamed_.has_room(eager)) return false;
  const uint64_t number = operations_++;
  record_call(Kind::kAllreduce, nullptr, number);
  add(context_.stats().operations, 1);
  const Ticket ticket = unnamed_.announce(signature, src.data, nbytes, eager);
  lock.unlock();
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
      const std::lock_guard again(mutex_);
      unnamed_.add(orphan);
      throw;
    }
    pass_on();  // the last rank's request may have come to this one first
    participants = RankMask();
    negotiation_.is_settled(ticket, &participants);
  }
  const bool agreed = negotiation_.feasible(ticket, participants);
  if (agreed) {
    operation.signature = signature;
    reduce_request_slots(ticket, participants, reduction, src.data, dst.data, src.count);
  }
  const std::string text = agreed ? "" : negotiation_.mismatch(ticket, participants);
  lock.lock();
  unnamed_.consume(ticket);
  lock.unlock();
  if (!agreed) throw MismatchError(text + " " + where(operation));
  add(context_.stats().one_shot, 1);
  add(context_.stats().bytes_moved, nbytes);
  return true;
}

// Folds in rank order straight from the request slots or eager buffers; this rank's own input comes from its tensor.
void Group::reduce_request_slots(Ticket ticket, const RankMask& participants, const Reduction& reduction,
                                 const std::byte* src, std::byte* dst, size_t count) const {
  const bool eager = count * itemsize(reduction.dtype) > control_.inline_nbytes();
  const void* srcs[kMaxRanks];
  size_t nsrc = 0;
  for (int r = 0; r < size(); ++r) {
    if (!participants.test(r)) continue;
    const std::byte* payload = control_.payload(ticket.request_slot, r);
    if (r == rank_) {
      payload = src;
    } else if (eager) {
      uint64_t index;
      std::memcpy(&index, payload, sizeof index);
      payload = control_.eager(r, static_cast<size_t>(index));
    }
    srcs[nsrc++] = payload;
  }
  void* out = dst;
  context_.kernels().reduce(reduction, srcs, nsrc, &out, 1, count);
}

// In a group that has failed nobody decides anything more. There a rank whose request differs from the others' raises
// MismatchError, and not the group's failure.
bool Group::is_settled(const Operation& operation, RankMask& participants) const {
  return has_failed(control_) ? negotiation_.complete(operation.ticket, &participants)
                              : negotiation_.is_settled(operation.ticket, &participants);
}

// mutex_ held. Finishes a quick operation if every rank has announced it.
bool Group::try_finish_quick(Operation& operation) {
  RankMask participants;
  if (!is_settled(operation, participants)) return false;
  if (!negotiation_.feasible(operation.ticket, participants)) {
    refuse(operation, participants);
    return true;
  }
  if (!operation.discard) compute_quick(operation, participants);
  add(context_.stats().one_shot, 1);
  succeed(operation);
  return true;
}

// mutex_ held. An operation of the log whose requests do not agree never enters it: its ranks see that here.
void Group::settle(Operation& operation) {
  RankMask participants;
  if (operation.settled.load(std::memory_order_relaxed) || operation.ticket.tag == 0) return;
  if (operation.state.load(std::memory_order_relaxed) != State::kPending) return;
  if (!is_settled(operation, participants)) return;
  operation.settled.store(true, std::memory_order_relaxed);
  if (negotiation_.feasible(operation.ticket, participants)) return;
  if (logged_.erase(operation.ticket.request_slot) != 0) pending_.fetch_sub(1);
  refuse(operation, participants);
}

void Group::refuse(Operation& operation, const RankMask& participants) {
  const std::string text = negotiation_.mismatch(operation.ticket, participants) + " " + where(operation);
  fail(operation, std::make_exception_ptr(MismatchError(text)));
}

void Group::compute_quick(Operation& operation, const RankMask& participants) {
  const Signature& s = operation.signature;
  if (operation.kind == Kind::kAllreduce) {
    const Reduction reduction = reduction_of(s, size());
    reduce_request_slots(operation.ticket, participants, reduction, operation.srcs[0].data, operation.dsts[0].data,
                         operation.srcs[0].count);
  } else if (operation.kind == Kind::kBroadcast && s.root != rank_) {
    const std::byte* payload = control_.payload(operation.ticket.request_slot, s.root);
    if (s.nbytes > control_.inline_nbytes()) {
      uint64_t index;
      std::memcpy(&index, payload, sizeof index);
      payload = control_.eager(s.root, static_cast<size_t>(index));
    }
    if (s.nbytes != 0) std::memcpy(operation.dsts[0].data, payload, s.nbytes);
  }
}

// mutex_ held. For who waits for all of them: ends a quick operation that is complete, and lets others run.
void Group::push(Operation& operation) {
  if (operation.quick && operation.state == State::kPending) try_finish_quick(operation);
  operation.wanted.store(true, std::memory_order_relaxed);
}

void Group::push_unnamed() {
  unnamed_.for_each([&](Ticket, const OperationPtr& operation) {
    if (operation != nullptr) push(*operation);
  });
}

// mutex_ held. The peers may reuse what this rank announced and read.
void Group::consume(Operation& operation) {
  if (!operation.name.empty()) {
    negotiation_.publish_consumed_named(operation.ticket);
  } else {
    unnamed_.consume(operation.ticket);
  }
}

// mutex_ held.
void Group::succeed(Operation& operation) {
  consume(operation);
  operation.keep.reset();
  add(context_.stats().bytes_moved, operation.signature.nbytes);
  operation.state.store(State::kDone, std::memory_order_release);
}

void Group::fail(Operation& operation, std::exception_ptr error) {
  consume(operation);
  operation.keep.reset();
  operation.error = std::move(error);
  operation.state.store(State::kFailed, std::memory_order_release);
}

// mutex_ held.
void Group::fail_everything(const std::exception_ptr& error) {
  const auto end = [&error](Operation& operation) {
    if (operation.state != State::kPending) return;
    operation.keep.reset();
    operation.error = error;
    operation.state.store(State::kFailed, std::memory_order_release);
  };
  for (auto& [request_slot, operation] : logged_) end(*operation);
  for (auto& [name, operation] : by_name_) end(*operation);
  for (const OperationPtr& operation : unnamed_.drain()) end(*operation);
  for (const OperationPtr& operation : point_to_point_.drain()) end(*operation);
  logged_.clear();
  by_name_.clear();
  pending_.store(0);
  messages_.store(0);
}

// Ranks are the world's, which is what callers speak of.
std::string Group::here() const {
  std::string text = "[ringreduce rank " + std::to_string(context_.rank()) + "/" +
                     std::to_string(context_.world().size()) + " on " + context_.hostname() + ", shm" +
                     (hosts_.several() ? "+" + context_.network_name() : "");
  if (id_ == 0) return text;
  for (const int r : world_ranks_) text += (r == world_ranks_.front() ? ", process set [" : ", ") + std::to_string(r);
  return text + "]";
}

std::string Group::where(const Operation& operation) const { return here() + ", " + called(operation) + "]"; }

}  // namespace rr
