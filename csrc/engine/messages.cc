// Group: send and receive.

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"

namespace rr {

bool Group::deliver_messages() {
  if (pending_counts_.messages.load(std::memory_order_relaxed) == 0) return false;
  bool finished = false;
  const bool moved = submitted_.lock()->pending.progress_messages(finished);
  if (finished) ring(*bells_.wait[static_cast<size_t>(rank_)]);
  return moved;
}

OperationPtr Group::send(const TensorView& src, int peer, int tag, std::shared_ptr<void> keep) {
  return message(src, peer, tag, std::move(keep), true);
}

OperationPtr Group::receive(const TensorView& dst, int peer, int tag, std::shared_ptr<void> keep) {
  return message(dst, peer, tag, std::move(keep), false);
}

void Group::check_peer(int peer, bool outgoing) const {
  if (peer == kAnyPeer && !outgoing) return;
  if (peer >= 0 && peer < size() && peer != rank_) return;
  throw InvalidArgumentError(std::string(outgoing ? "send to" : "recv from") + " rank " + std::to_string(peer) +
                             ": the peer must be another rank of the group");
}

OperationPtr Group::message(const TensorView& tensor, int peer, int tag, std::shared_ptr<void> keep, bool outgoing) {
  context_.throw_if_shut_down();
  throw_if_failed();
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
                                 std::to_string(world_ranks_[static_cast<size_t>(peer)]);
  operation->signature.nbytes = tensor.nbytes();
  operation->submitted_ns = now_ns();
  operation->keep = std::move(keep);
  (outgoing ? operation->srcs : operation->dsts).push_back(tensor);
  {
    const Locked submitted = submitted_.lock();
    throw_if_removed();
    operation->number = submitted->calls.record_message();
    context_.deadlock_timeout().record_call();
    if (outgoing) {
      submitted->pending.send(operation, peer, tag);
    } else {
      submitted->pending.receive(operation, peer, tag);
    }
  }
  add(context_.stats().operations, 1);
  context_.wake_engine();
  return operation;
}

}  // namespace rr
