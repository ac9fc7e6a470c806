// Group: executing the log on this rank, one step at a time, under the executor lock.

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/group.h"
#include "planner/exchange_plan.h"

namespace rr {
namespace {
// One step is one chunk (tens of microseconds); between steps the locks and looks around cost about 0.2 us. A caller's
// other duties (signals, timeouts, other groups) can wait for this many.
constexpr int kStepsAtOnce = 16;

// Whether GPUs work in each other's memory: on the path ipc, and on the first level of 'staged' over several hosts.
bool maps_gpu_memory(const Entry& entry, const Hosts& hosts) {
  const Algo path = static_cast<Algo>(entry.algorithm);
  return path == Algo::kIpc || (path == Algo::kStaged && hosts.several());
}
}  // namespace

bool Group::progress(bool from_engine) {
  bool moved = relay();
  if (has_failed(control_)) {
    if (pending_.operations.load(std::memory_order_relaxed) == 0 && joining_.load(std::memory_order_relaxed) == 0)
      return moved;
    drop_active();
    try {
      throw_failure(control_);
    } catch (...) {
      const Locked submitted = submitted_.lock();
      PendingOperations& pending = submitted->pending;
      // Ranks that differ in an operation are told that, also by one whose end has failed the group meanwhile.
      const std::unordered_map<uint64_t, OperationPtr> logged = pending.logged();
      for (const auto& [request_slot, operation] : logged) pending.settle(*operation);
      pending.fail_all(std::current_exception());
    }
    negotiation_.ring_all();
    return true;
  }
  try {
    moved |= deliver_messages();
    return step_log(from_engine) || moved;
  } catch (const std::exception& error) {
    fail_group(error);
    return true;
  }
}

bool Group::step_log(bool from_engine) {
  linger_until_ns_ = INT64_MAX;
  if (retry_append_.load(std::memory_order_relaxed) ||
      control_.header().joined_count.load(std::memory_order_relaxed) != 0) {
    append_complete();
  }
  if (active_ == nullptr) {
    Entry& entry = control_.entry(cursor_);
    if (entry.seq.load(std::memory_order_acquire) != cursor_ + 1) return false;
    if (relay_ != nullptr && !relay_->has_sent(cursor_)) return false;
    if (entry.closed.load(std::memory_order_acquire) == 0) {
      if (!wants_bucket(from_engine)) return false;
      negotiation_.close(entry);
    }
    if (!entry.participants.test(rank_) && entry.rounds.load(std::memory_order_acquire) == 0) return false;
    start_entry(entry);
    if (active_ == nullptr) return true;
  }
  for (int steps = 0; steps < kStepsAtOnce; ++steps) {
    switch (active_->step()) {
      case Step::kIdle:
        return steps != 0;
      case Step::kDone:
        if (!fail_if_memory_is_gone()) finish_entry();
        return true;
      case Step::kProgress:
        break;
    }
  }
  return true;
}

// Operations that became complete without a request of their own rank (somebody joined), or found the log full.
void Group::append_complete() {
  retry_append_.store(false, std::memory_order_relaxed);
  std::vector<Ticket> tickets;
  {
    const Locked submitted = submitted_.lock();
    for (const auto& [request_slot, operation] : submitted->pending.logged()) tickets.push_back(operation->ticket);
  }
  for (const Ticket ticket : tickets) {
    if (!negotiation_.append(ticket)) {
      retry_append_.store(true, std::memory_order_relaxed);
      return;
    }
  }
}

// An open bucket is closed by whoever wants a member of it; for the engine that is after a while of lingering, so that
// work goes on in the background and tensors submitted one after the other still share a bucket.
bool Group::wants_bucket(bool from_engine) {
  bool wanted = control_.line(rank_).joined.load(std::memory_order_relaxed) != 0;
  int64_t oldest_ns = INT64_MAX;
  const Locked submitted = submitted_.lock();
  for (const auto& [request_slot, operation] : submitted->pending.logged()) {
    const Ticket ticket = operation->ticket;
    if (!negotiation_.is_appended(ticket)) continue;
    wanted |= operation->wanted.load(std::memory_order_relaxed) || operation->signature.is_async == 0;
    oldest_ns = std::min(oldest_ns, operation->submitted_ns);
  }
  if (wanted || oldest_ns == INT64_MAX) return wanted;
  const int64_t until = oldest_ns + static_cast<int64_t>(context_.settings().fusion_linger_us * 1000);
  if (until <= now_ns()) return true;
  if (from_engine) linger_until_ns_ = until;
  return false;
}

void Group::start_entry(Entry& entry) {
  active_members_.clear();
  active_rounds_ = 0;
  if (entry.participants.test(rank_)) {
    const Locked submitted = submitted_.lock();
    const auto& logged = submitted->pending.logged();
    for (uint32_t i = 0; i < entry.members; ++i) {
      const auto found = logged.find(entry.member[i].request_slot);
      if (found == logged.end() || found->second->ticket.tag != entry.member[i].tag) {
        throw Error("the log names an operation that this rank does not have (request slot " +
                    std::to_string(entry.member[i].request_slot) + ", rank " + std::to_string(rank_) + ")");
      }
      active_members_.push_back(found->second);
    }
  }
  if (active_members_.empty()) {
    skip_entry(entry);
    return finish_entry();
  }
  active_ = planner_.plan(cursor_, active_members_, rounds_base_, active_rounds_);
  entry.rounds.store(active_rounds_ + 1, std::memory_order_release);
  if (control_.header().joined_count.load(std::memory_order_relaxed) != 0) negotiation_.ring_waiters();
}

// This rank has joined and has no part in the entry: only all-reduces go on without it. It keeps count of the rounds.
void Group::skip_entry(Entry& entry) {
  active_rounds_ = static_cast<size_t>(entry.rounds.load(std::memory_order_acquire) - 1);
  const Stage stage = control_.stage(static_cast<size_t>(control_.header().chunk_nbytes));
  skip_rounds(stage, rank_, rounds_base_, active_rounds_);
  negotiation_.ring_waiters();  // not a team's to ring: this rank is in none
}

// What the work streams have been told to do goes on in the memory of operations that have failed.
void Group::drop_active() {
  if (active_ != nullptr) planner_.on_device().abort_nccl();
  if (active_ != nullptr && active_members_.front()->signature.place == Place::kDevice) {
    context_.abandon(std::move(active_), active_members_, maps_gpu_memory(control_.entry(cursor_), hosts_));
  }
  active_.reset();
  active_members_.clear();
}

// What was read straight from the memory of a rank that has left since, without having seen the operation end, may have
// been anything: its owner was free to write there again.
bool Group::fail_if_memory_is_gone() {
  const Entry& entry = control_.entry(cursor_);
  if (static_cast<Algo>(entry.algorithm) != Algo::kDirect && !maps_gpu_memory(entry, hosts_)) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // look after reading
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || !entry.participants.test(r) || !hosts_.is_here(r)) continue;
    const RankLine& line = control_.line(r);
    if (!has_left(line)) continue;
    if (line.cursor.load(std::memory_order_acquire) > cursor_) continue;
    const Locked submitted = submitted_.lock();
    members_.fail_because_left(r, active_members_.front().get());
    return true;
  }
  return false;
}

void Group::finish_entry() {
  Stats& stats = context_.stats();
  const std::string failure = active_ != nullptr ? active_->failure() : "";
  active_.reset();
  if (!active_members_.empty()) {
    add(stats.buckets, 1);
    if (active_members_.size() > 1) add(stats.fused_operations, active_members_.size());
  }
  {
    const Locked submitted = submitted_.lock();
    PendingOperations& pending = submitted->pending;
    for (const OperationPtr& operation : active_members_) {
      if (!failure.empty()) {
        pending.fail(*operation, std::make_exception_ptr(InternalError(failure + " " + where(*operation))));
      } else if (const std::string surprise = unexpected_rows(*operation, rank_); !surprise.empty()) {
        pending.fail(*operation, std::make_exception_ptr(MismatchError(surprise + " " + where(*operation))));
      } else {
        pending.succeed(*operation);
      }
      pending.remove_logged(*operation);
    }
  }
  active_members_.clear();
  rounds_base_ += active_rounds_;
  control_.line(rank_).cursor.store(++cursor_, std::memory_order_release);
  // A rank may wait for this one to make room in a log that was full.
  if (control_.header().log_tail.load(std::memory_order_relaxed) >= cursor_ - 1 + kLogEntries)
    negotiation_.ring_waiters();
  // Threads of this rank may sleep on what has just finished.
  ring(*bells_.wait[static_cast<size_t>(rank_)]);
}

bool Group::deliver_messages() {
  if (pending_.messages.load(std::memory_order_relaxed) == 0) return false;
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
