#include "engine/group/submitter.h"

#include "base/errors.h"
#include "engine/context.h"
#include "operations/recording.h"
#include "operations/request_check.h"
#include "planner/gpu/operands.h"

namespace rr {

void Submitter::check_request(const Request& request) const {
  rr::check_request(request, parts_.from.rank, parts_.from.size(), parts_.context.gpu().device() != nullptr);
}

OperationPtr Submitter::make(const Request& request) const {
  auto operation = std::make_shared<Operation>();
  operation->kind = request.kind;
  operation->srcs = request.srcs;
  operation->dsts = request.dsts;
  operation->splits = request.splits;
  operation->expected = request.expected;
  operation->signature = sign(request);
  operation->submitted_ns = now_ns();
  operation->keep = request.keep;
  if (request.name != nullptr) operation->name = *request.name;
  Signature& signature = operation->signature;
  operation->quick = parts_.negotiation.requests().is_quick(signature, request.name != nullptr);
  if (signature.place == Place::kDevice) {
    show_device_operands(parts_.from, *operation);
  } else if (!operation->quick && can_be_direct(request.kind) && signature.tensors == 1 && !request.srcs.empty()) {
    const auto find = [&](const TensorView& tensor) { return parts_.from.segments.find(tensor.data, tensor.nbytes()); };
    signature.src = find(request.srcs[0]);
    if (request.kind == Kind::kAllreduce) {
      signature.dst = request.dsts[0].data == request.srcs[0].data ? signature.src : find(request.dsts[0]);
    }
  }
  if (request.kind == Kind::kAlltoall && operation->splits.empty()) {
    const auto size = static_cast<uint64_t>(parts_.from.size());
    operation->splits.assign(size, request.srcs[0].rows() / size);
  }
  return operation;
}

OperationPtr Submitter::submit(const Request& request, Interrupt interrupt) {
  parts_.context.throw_if_shut_down();
  parts_.throw_if_failed(request.kind, request.name);
  check_request(request);
  OperationPtr operation = make(request);
  try {
    announce(operation, request, interrupt);
  } catch (...) {
    parts_.from.recorder.take_back(parts_.from.recorded_group.number, operation->name, operation->recorded);
    throw;
  }
  // ring_waiters() begins with a full fence. The fence also orders this request before the look at the others'
  // requests, so at least one rank sees all of them.
  parts_.negotiation.segment().ring_waiters();
  if (request.is_async) relay_.hand_over(operation->ticket);
  if (!operation->quick && request.name == nullptr && parts_.negotiation.requests().complete(operation->ticket)) {
    add(parts_.from.stats.negotiations, 1);
    if (!parts_.negotiation.log().append(operation->ticket)) executor_.retry_append();
  }
  return operation;
}

void Submitter::announce(const OperationPtr& operation, const Request& request, Interrupt interrupt) {
  // What goes with the request: the data of a quick operation, the splits of an alltoall.
  const void* payload = operation->splits.data();
  size_t nbytes = operation->splits.size() * sizeof(uint64_t);
  const bool gives_data = operation->quick && (request.kind == Kind::kAllreduce ||
                                               (request.kind == Kind::kBroadcast && request.root == parts_.from.rank));
  if (gives_data) {
    payload = request.srcs[0].data;
    nbytes = static_cast<size_t>(operation->signature.nbytes);
  }
  const bool eager = operation->quick && operation->signature.nbytes > kInlineNbytes;

  auto submitted = parts_.submitted.lock();
  deadlock_watch_.record_thread(submitted, request.is_from_queue);
  // The queue announces what was called before join(). A thread that waits for room here may find that another has
  // joined.
  const auto check_open = [&] {
    parts_.context.throw_if_shut_down();  // under the lock: what is announced later, nobody would end
    if (!request.is_from_queue || joining_.has_joined() || parts_.is_removed) joining_.throw_if_closed(request.kind);
  };
  check_open();
  operation->number = submitted->calls.record(request.kind, request.name);
  record_call(parts_.from, *operation, parts_.control().header().verdicts.load());
  parts_.context.deadlock_timeout().record_call();
  add(parts_.from.stats.operations, 1);
  if (request.name == nullptr) {
    announce_waiter_.wait_for_window(submitted, eager, *operation, interrupt);
    check_open();
    return submitted->pending.announce_unnamed(operation, payload, nbytes, eager && gives_data);
  }
  add(parts_.from.stats.negotiations, 1);
  const auto announced = [&](PendingOperations& pending) {
    check_open();
    bool log_full = false;
    const bool has_room = pending.announce_named(operation, payload, nbytes, log_full);
    if (log_full) executor_.retry_append();
    return has_room;
  };
  if (!announced(submitted->pending)) announce_waiter_.wait_for_name(submitted, *operation, interrupt, announced);
}

void Submitter::check_peer(int peer, bool outgoing) const {
  if (peer == kAnyPeer && !outgoing) return;
  if (peer >= 0 && peer < parts_.from.size() && peer != parts_.from.rank) return;
  throw InvalidArgumentError(std::string(outgoing ? "send to" : "recv from") + " rank " + std::to_string(peer) +
                             ": the peer must be another rank of the group");
}

OperationPtr Submitter::message(const TensorView& tensor, int peer, int tag, std::shared_ptr<void> keep,
                                bool outgoing) {
  parts_.context.throw_if_shut_down();
  parts_.throw_if_failed();
  if (tensor.place == Place::kDevice) {
    throw UnavailableError("send and recv take host memory: copy the tensor to the CPU first");
  }
  check_peer(peer, outgoing);
  const bool anyone = peer == kAnyPeer;
  auto operation = std::make_shared<Operation>();
  operation->kind = Kind::kBarrier;
  operation->peer = peer;
  operation->name = anyone ? "recv from any rank"
                           : (outgoing ? "send to rank " : "recv from rank ") +
                                 std::to_string(parts_.from.world_ranks[static_cast<size_t>(peer)]);
  operation->signature.nbytes = tensor.nbytes();
  operation->submitted_ns = now_ns();
  operation->keep = std::move(keep);
  record_call(parts_.from, *operation);
  (outgoing ? operation->srcs : operation->dsts).push_back(tensor);
  {
    const auto submitted = parts_.submitted.lock();
    parts_.context.throw_if_shut_down();
    parts_.throw_if_removed();
    operation->number = submitted->calls.record_message(operation->name);
    parts_.context.deadlock_timeout().record_call();
    if (outgoing) {
      submitted->pending.send(operation, peer, tag);
    } else {
      submitted->pending.receive(operation, peer, tag);
    }
  }
  add(parts_.from.stats.operations, 1);
  parts_.context.wait_loop().wake_engine();
  parts_.context.wait_loop().wake_callers();
  return operation;
}

}  // namespace rr
