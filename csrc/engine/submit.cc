// Group: from a call to a request that the other ranks see.

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"
#include "engine/request_check.h"
#include "planner/gpu/operands.h"

namespace rr {

// A rank too far ahead of the others waits here, finishing its own older operations meanwhile.
void Group::wait_for_window(Locked& submitted, bool eager, Operation& waiting, Interrupt interrupt) {
  while (!submitted->pending.unnamed().has_room(eager)) {
    submitted.unlock();
    const auto moved_on = [&] {
      throw_if_failed();
      throw_if_removed();
      context_.throw_if_shut_down();
      const Locked inner = submitted_.lock();
      inner->pending.push_unnamed();
      return inner->pending.unnamed().has_room(eager);
    };
    DeadlockTimeout::Waiter waiter(context_.deadlock_timeout());
    const auto tick = [&] {
      check_window(waiting);
      look_for_deadlock_timeout(waiter, "to call " + called_shortly(waiting.kind, waiting.name, waiting.number) +
                                            ", too far ahead of a rank that has not called what came before");
    };
    context_.wait_until(moved_on, [this] { return has_work(); }, Deadline::never(), interrupt, crowded_, tick);
    submitted.lock();
  }
}

// The window moves when every rank has consumed its oldest operation: if that takes too long, or a rank has left, the
// operation that waits to be announced has failed.
void Group::check_window(Operation& waiting) {
  const Locked submitted = submitted_.lock();
  const UnnamedWindow& unnamed = submitted->pending.unnamed();
  if (members_.fail_if_unread(waiting)) return;
  for (int r = 0; r < size(); ++r) {
    const int by = members_.unreachable_because_of(r);
    if (by >= 0 && control_.line(r).watermark.load() < unnamed.next()) return members_.fail_because_left(by, &waiting);
  }
  const OperationPtr oldest = unnamed.oldest();
  check_age(oldest != nullptr ? *oldest : waiting, now_ns());
}

// A rank whose only thread is blocked has said so; now another one is here.
void Group::record_thread(Locked& submitted, bool is_from_queue) {
  if (submitted->calls.record_thread(is_from_queue)) return;
  while (!submitted->calls.has_many_threads() && !negotiation_.lift_block()) {
    submitted.unlock();
    const auto gone_on = [this] {
      return !negotiation_.is_frozen() || has_failed(control_) || context_.is_shut_down();
    };
    await_verdict(gone_on);
    submitted.lock();
    if (has_failed(control_) || context_.is_shut_down()) break;
  }
  submitted->calls.set_many_threads();
}

// All names of the table are in flight, or a rank that has joined has not consumed this one. Waits for room and then
// announces the operation.
void Group::wait_for_name(Locked& submitted, Operation& waiting, Interrupt interrupt,
                          const std::function<bool(PendingOperations&)>& announce) {
  submitted.unlock();
  const auto announced = [&] {
    throw_if_failed();
    context_.throw_if_shut_down();
    const Locked inner = submitted_.lock();
    inner->pending.push_named();
    return announce(inner->pending);
  };
  // Those in flight are older, so they time out first and say whom they miss.
  DeadlockTimeout::Waiter waiter(context_.deadlock_timeout());
  const auto tick = [&] {
    look_for_deadlock_timeout(waiter, "to call " + called_shortly(waiting.kind, waiting.name, waiting.number) +
                                          ", because all " + std::to_string(control_.capacity()) +
                                          " tensor names of the group are in flight (RINGREDUCE_CACHE_CAPACITY)");
    if (members_.fail_if_unread(waiting)) return;
    const double warning_s = context_.settings().stall_warning_s;
    const double age_s = static_cast<double>(now_ns() - waiting.submitted_ns) * 1e-9;
    if (warning_s <= 0 || age_s < warning_s || negotiation_.has_idle_name() || waiting.warned.exchange(true)) return;
    context_.log().warning(where(waiting) + " waits because all " + std::to_string(control_.capacity()) +
                           " tensor names of the group are in flight; if that is usual, raise "
                           "RINGREDUCE_CACHE_CAPACITY");
  };
  context_.wait_until(announced, [this] { return has_work(); }, Deadline::never(), interrupt, crowded_, tick);
  submitted.lock();
}

void Group::check_request(const Request& request) const {
  rr::check_request(request, rank_, size(), context_.device() != nullptr);
}

OperationPtr Group::submit(const Request& request, Interrupt interrupt) {
  context_.throw_if_shut_down();
  throw_if_failed();
  check_request(request);
  auto operation = std::make_shared<Operation>();
  operation->kind = request.kind;
  operation->srcs = request.srcs;
  operation->dsts = request.dsts;
  operation->splits = request.splits;
  operation->expected = request.expected;
  operation->signature = sign(request);
  operation->submitted_ns = now_ns();
  operation->keep = request.keep;
  Signature& signature = operation->signature;
  const size_t nbytes = static_cast<size_t>(signature.nbytes);
  operation->quick = negotiation_.is_quick(signature, request.name != nullptr);
  const bool eager = operation->quick && nbytes > control_.inline_nbytes();
  if (signature.place == Place::kDevice) {
    show_device_operands(resources_, *operation);
  } else if (!operation->quick && can_be_direct(request.kind) && signature.tensors == 1 && !request.srcs.empty()) {
    const auto find = [&](const TensorView& tensor) { return context_.segments().find(tensor.data, tensor.nbytes()); };
    signature.src = find(request.srcs[0]);
    if (request.kind == Kind::kAllreduce) {
      signature.dst = request.dsts[0].data == request.srcs[0].data ? signature.src : find(request.dsts[0]);
    }
  }
  // What goes with the request: the data of a quick operation, the splits of an alltoall.
  std::vector<uint64_t> splits = request.splits;
  if (request.kind == Kind::kAlltoall && splits.empty()) {
    splits.assign(static_cast<size_t>(size()), request.srcs[0].rows() / static_cast<uint64_t>(size()));
    operation->splits = splits;
  }
  const void* payload = splits.data();
  size_t payload_nbytes = splits.size() * sizeof(uint64_t);
  const bool gives_data = operation->quick && (request.kind == Kind::kAllreduce ||
                                               (request.kind == Kind::kBroadcast && request.root == rank_));
  if (gives_data) {
    payload = request.srcs[0].data;
    payload_nbytes = nbytes;
  }

  Locked submitted = submitted_.lock();
  record_thread(submitted, request.is_from_queue);
  // The queue announces what was called before join(). A thread that waits for room here may find that another has
  // joined.
  const auto check_open = [&] {
    if (!request.is_from_queue || has_joined_.load() || is_removed_) throw_if_closed(request.kind);
  };
  check_open();
  operation->number = submitted->calls.record(request.kind, request.name);
  context_.deadlock_timeout().record_call();
  add(context_.stats().operations, 1);
  if (request.name != nullptr) {
    operation->name = *request.name;
    add(context_.stats().negotiations, 1);
    const auto announce = [&](PendingOperations& pending) {
      check_open();
      bool log_full = false;
      const bool announced = pending.announce_named(operation, payload, payload_nbytes, log_full);
      if (log_full) executor_.retry_append();
      return announced;
    };
    if (!announce(submitted->pending)) wait_for_name(submitted, *operation, interrupt, announce);
  } else {
    wait_for_window(submitted, eager, *operation, interrupt);
    check_open();
    submitted->pending.announce_unnamed(operation, payload, payload_nbytes, eager && gives_data);
  }
  submitted.unlock();
  // ring_waiters() begins with a full fence. The fence also orders this request before the look at the others'
  // requests, so at least one rank sees all of them.
  negotiation_.ring_waiters();
  if (!operation->quick && request.name == nullptr && negotiation_.complete(operation->ticket)) {
    add(context_.stats().negotiations, 1);
    if (!negotiation_.append(operation->ticket)) executor_.retry_append();
  }
  return operation;
}

}  // namespace rr
