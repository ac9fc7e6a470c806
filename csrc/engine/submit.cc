// Group: from a call to a request that the other ranks see.

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

// A rank too far ahead of the others waits here, finishing its own older operations meanwhile.
void Group::wait_for_window(std::unique_lock<std::mutex>& lock, bool eager, Operation& waiting, Interrupt interrupt) {
  while (!unnamed_.has_room(eager)) {
    lock.unlock();
    const auto moved_on = [&] {
      throw_if_failed();
      throw_if_removed();
      context_.throw_if_shut_down();
      const std::unique_lock inner(mutex_);
      push_unnamed();
      return unnamed_.has_room(eager);
    };
    DeadlockTimeout::Waiter waiter(context_.deadlock_timeout());
    const auto tick = [&] {
      check_window(waiting);
      look_for_deadlock_timeout(waiter, "to call " + called_shortly(waiting.kind, waiting.name, waiting.number) +
                                            ", too far ahead of a rank that has not called what came before");
    };
    context_.wait_until(moved_on, [this] { return has_work(); }, Deadline::never(), interrupt, crowded_, tick);
    lock.lock();
  }
}

// The window moves when every rank has consumed its oldest operation: if that takes too long, or a rank has left, the
// operation that waits to be announced has failed.
void Group::check_window(Operation& waiting) {
  const std::lock_guard lock(mutex_);
  if (fail_if_unread(waiting)) return;
  for (int r = 0; r < size(); ++r) {
    const int by = unreachable_because_of(r);
    if (by >= 0 && control_.line(r).watermark.load() < unnamed_.next()) return fail_because_left(by, &waiting);
  }
  const OperationPtr oldest = unnamed_.oldest();
  check_age(oldest != nullptr ? *oldest : waiting, now_ns());
}

// mutex_ held. A rank whose only thread is blocked has said so; now another one is here.
void Group::record_thread(std::unique_lock<std::mutex>& lock, bool is_from_queue) {
  const std::thread::id self = std::this_thread::get_id();
  if (only_thread_ == self) return;
  if (!is_from_queue) record_caller_locked();
  if (only_thread_ == std::thread::id()) {
    only_thread_ = self;
    return;
  }
  while (!many_threads_ && !negotiation_.lift_block()) {
    lock.unlock();
    const auto gone_on = [this] {
      return !negotiation_.is_frozen() || has_failed(control_) || context_.is_shut_down();
    };
    await_verdict(gone_on);
    lock.lock();
    if (has_failed(control_) || context_.is_shut_down()) break;
  }
  many_threads_ = true;
}

// mutex_ held. Announces a named operation and puts it into the tables; false when there is no room for it.
bool Group::announce_named(const OperationPtr& operation, const void* payload, size_t nbytes) {
  free_name(operation->name);
  bool log_full = false;
  operation->ticket =
      negotiation_.announce_named(operation->name, operation->signature, payload, nbytes, !operation->quick, log_full);
  if (operation->ticket.tag == 0) return false;
  if (log_full) retry_append_.store(true);
  by_name_[operation->name] = operation;
  add_logged(operation);
  return true;
}

void Group::add_logged(const OperationPtr& operation) {
  if (operation->quick) return;
  logged_[operation->ticket.request_slot] = operation;
  pending_.fetch_add(1);
}

// All names of the table are in flight, or a rank that has joined has not consumed this one. Waits for room and then
// announces the operation.
void Group::wait_for_name(std::unique_lock<std::mutex>& lock, Operation& waiting, Interrupt interrupt,
                          const std::function<bool()>& announce) {
  lock.unlock();
  const auto announced = [&] {
    throw_if_failed();
    context_.throw_if_shut_down();
    const std::lock_guard inner(mutex_);
    for (auto& [name, operation] : by_name_) push(*operation);
    return announce();
  };
  // Those in flight are older, so they time out first and say whom they miss.
  DeadlockTimeout::Waiter waiter(context_.deadlock_timeout());
  const auto tick = [&] {
    look_for_deadlock_timeout(waiter, "to call " + called_shortly(waiting.kind, waiting.name, waiting.number) +
                                          ", because all " + std::to_string(control_.capacity()) +
                                          " tensor names of the group are in flight (RINGREDUCE_CACHE_CAPACITY)");
    if (fail_if_unread(waiting)) return;
    const double warning_s = context_.settings().stall_warning_s;
    const double age_s = static_cast<double>(now_ns() - waiting.submitted_ns) * 1e-9;
    if (warning_s <= 0 || age_s < warning_s || negotiation_.has_idle_name() || waiting.warned.exchange(true)) return;
    context_.log().warning(where(waiting) + " waits because all " + std::to_string(control_.capacity()) +
                           " tensor names of the group are in flight; if that is usual, raise "
                           "RINGREDUCE_CACHE_CAPACITY");
  };
  context_.wait_until(announced, [this] { return has_work(); }, Deadline::never(), interrupt, crowded_, tick);
  lock.lock();
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
    show_device_operands(*operation);
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

  std::unique_lock lock(mutex_);
  record_thread(lock, request.is_from_queue);
  // The queue announces what was called before join(). A thread that waits for room here may find that another has
  // joined.
  const auto check_open = [&] {
    if (!request.is_from_queue || has_joined_.load() || is_removed_) throw_if_closed(request.kind);
  };
  check_open();
  operation->number = operations_++;
  record_call(request.kind, request.name, operation->number);
  add(context_.stats().operations, 1);
  if (request.name != nullptr) {
    operation->name = *request.name;
    add(context_.stats().negotiations, 1);
    const auto announce = [&] {
      check_open();
      return announce_named(operation, payload, payload_nbytes);
    };
    if (!announce()) wait_for_name(lock, *operation, interrupt, announce);
  } else {
    wait_for_window(lock, eager, *operation, interrupt);
    check_open();
    operation->ticket = unnamed_.announce(signature, payload, payload_nbytes, eager && gives_data);
    unnamed_.add(operation);
    add_logged(operation);
  }
  lock.unlock();
  // ring_waiters() begins with a full fence. The fence also orders this request before the look at the others'
  // requests, so at least one rank sees all of them.
  negotiation_.ring_waiters();
  if (!operation->quick && request.name == nullptr && negotiation_.complete(operation->ticket)) {
    add(context_.stats().negotiations, 1);
    if (!negotiation_.append(operation->ticket)) retry_append_.store(true);
  }
  return operation;
}

// A name is free once its operation has been waited for, polled done, or finished with nobody holding its handle.
void Group::free_name(const std::string& name) {
  const auto busy = by_name_.find(name);
  if (busy == by_name_.end()) return;
  Operation& operation = *busy->second;
  if (operation.quick && operation.state == State::kPending) try_finish_quick(operation);
  if (operation.state == State::kPending || busy->second.use_count() > 1) {
    throw InvalidArgumentError(
        "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is "
        "currently "
        "being processed.  If you want to request another tensor, use a different tensor name. (" +
        where(operation) + ")");
  }
  by_name_.erase(busy);
}

}  // namespace rr
