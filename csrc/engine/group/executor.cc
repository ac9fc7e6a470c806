#include "engine/group/executor.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "negotiation/segment/failure.h"
#include "operations/recording.h"
#include "planner/exchange_plan.h"

namespace rr {
namespace {
// One step is one chunk (tens of microseconds); between steps the locks and looks around cost about 0.2 us. A caller's
// other duties (signals, timeouts, other groups) can wait for this many.
constexpr int kStepsAtOnce = 16;
// Entries that a GPU may be at together. A work stream has room for some 1000 launches; then the driver blocks.
constexpr size_t kMostIssued = 32;
constexpr double kBusyS = 10.0;      // an entry waits so long for memory of a GPU that is full
constexpr double kStoresEndS = 1.0;  // a rank that takes its memory back waits so long for those who store into it
}  // namespace

bool Executor::step(bool from_engine, const HostRelay* relay) {
  const bool has_ended = end_issued();
  return step_entry(from_engine, relay) || has_ended;
}

// A work stream is in order, so one that is not done means that no later one is.
bool Executor::end_issued() {
  bool has_ended = false;
  while (!issued_.empty() && issued_.front().algorithm->step() == Step::kDone) {
    // NCCL's kernels let go, without the sum, where a rank has aborted: one that fails or leaves says so before.
    if (has_failed(from_.control)) break;
    if (fail_if_somebody_is_gone(issued_.front().position, *issued_.front().members.front(), false)) break;
    const Issued entry = std::move(issued_.front());
    issued_.pop_front();
    end_members(entry.members, entry.algorithm->failure());
    has_ended = true;
  }
  if (has_ended) publish_ended();
  return has_ended;
}

bool Executor::step_entry(bool from_engine, const HostRelay* relay) {
  linger_until_ns_ = INT64_MAX;
  if (retry_append_.load(std::memory_order_relaxed) ||
      from_.control.header().joined_count.load(std::memory_order_relaxed) != 0) {
    append_complete();
  }
  if (active_ == nullptr) {
    Entry& entry = from_.control.entry(cursor_);
    if (entry.seq.load(std::memory_order_acquire) != cursor_ + 1) return false;
    if (relay != nullptr && !relay->has_sent(cursor_)) return false;
    if (issued_.size() == kMostIssued) return false;
    if (entry.closed.load(std::memory_order_acquire) == 0) {
      if (!wants_bucket(from_engine)) return false;
      negotiation_.log().close(entry);
    }
    if (!entry.participants.test(from_.rank) && entry.rounds.load(std::memory_order_acquire) == 0) return false;
    if (!start_entry(entry)) return false;
    if (active_ == nullptr) return true;
  }
  for (int steps = 0; steps < kStepsAtOnce; ++steps) {
    switch (active_->step()) {
      case Step::kIdle:
        return steps != 0;
      case Step::kDone:
        if (!fail_if_memory_is_gone()) finish_entry();
        return true;
      case Step::kIssued:
        for (const OperationPtr& operation : active_members_) operation->is_issued = true;
        issued_.push_back({cursor_, std::move(active_), std::move(active_members_)});
        active_members_.clear();
        go_on();
        return true;
      case Step::kProgress:
        break;
    }
  }
  return true;
}

bool Executor::deliver_messages() {
  if (counts_.messages.load(std::memory_order_relaxed) == 0) return false;
  bool finished = false;
  const bool moved = submitted_.lock()->pending.progress_messages(finished);
  if (finished) ring(*from_.bells[static_cast<size_t>(from_.rank)]);
  return moved;
}

// Operations that became complete without a request of their own rank (somebody joined), or found the log full.
void Executor::append_complete() {
  retry_append_.store(false, std::memory_order_relaxed);
  std::vector<Ticket> tickets;
  {
    const auto submitted = submitted_.lock();
    for (const auto& [request_slot, operation] : submitted->pending.logged()) tickets.push_back(operation->ticket);
  }
  for (const Ticket ticket : tickets) {
    if (!negotiation_.log().append(ticket)) {
      retry_append_.store(true, std::memory_order_relaxed);
      return;
    }
  }
}

// An open bucket is closed by whoever wants a member of it; for the engine that is after a while of lingering, so that
// work goes on in the background and tensors submitted one after the other still share a bucket.
bool Executor::wants_bucket(bool from_engine) {
  bool wanted = from_.control.line(from_.rank).joined.load(std::memory_order_relaxed) != 0;
  int64_t oldest_ns = INT64_MAX;
  const auto submitted = submitted_.lock();
  for (const auto& [request_slot, operation] : submitted->pending.logged()) {
    const Ticket ticket = operation->ticket;
    if (operation->is_issued || !negotiation_.requests().is_appended(ticket)) continue;
    wanted |= operation->wanted.load(std::memory_order_relaxed) || operation->signature.is_async == 0;
    oldest_ns = std::min(oldest_ns, operation->submitted_ns);
  }
  if (wanted || oldest_ns == INT64_MAX) return wanted;
  const int64_t until = oldest_ns + static_cast<int64_t>(from_.settings.fusion_linger_us * 1000);
  if (until <= now_ns()) return true;
  if (from_engine) linger_until_ns_ = until;
  return false;
}

// False: not yet, because the GPU has no memory until work that waits for peers has ended there, by itself or because
// its group fails.
bool Executor::start_entry(Entry& entry) {
  active_members_.clear();
  active_rounds_ = 0;
  if (entry.participants.test(from_.rank)) {
    const auto submitted = submitted_.lock();
    const auto& logged = submitted->pending.logged();
    for (uint32_t i = 0; i < entry.members; ++i) {
      const auto found = logged.find(entry.member[i].request_slot);
      if (found == logged.end() || found->second->ticket.tag != entry.member[i].tag) {
        throw Error("the log names an operation that this rank does not have (request slot " +
                    std::to_string(entry.member[i].request_slot) + ", rank " + std::to_string(from_.rank) + ")");
      }
      active_members_.push_back(found->second);
    }
  }
  if (active_members_.empty()) {
    skip_entry(entry);
    finish_entry();
    return true;
  }
  if (from_.recorder.is_on()) {
    const int64_t started_ns = now_ns();
    for (const OperationPtr& operation : active_members_) {
      record_start(*operation, started_ns, static_cast<uint8_t>(entry.algorithm), active_members_.size() > 1);
    }
  }
  try {
    active_ = planner_.plan(cursor_, active_members_, rounds_base_, active_rounds_);
    busy_since_ns_ = 0;
  } catch (const DeviceBusyError&) {
    if (busy_since_ns_ == 0) busy_since_ns_ = now_ns();
    // Two groups may wait so for each other.
    if (static_cast<double>(now_ns() - busy_since_ns_) * 1e-9 > kBusyS) throw;
    for (const OperationPtr& operation : active_members_) {
      operation->counts.clear();
      operation->output.reset();
      operation->output_nbytes = 0;
    }
    active_members_.clear();
    return false;
  }
  entry.rounds.store(active_rounds_ + 1, std::memory_order_release);
  if (from_.control.header().joined_count.load(std::memory_order_relaxed) != 0) negotiation_.segment().ring_waiters();
  return true;
}

// This rank has joined and has no part in the entry: only all-reduces go on without it. It keeps count of the rounds.
void Executor::skip_entry(Entry& entry) {
  active_rounds_ = static_cast<size_t>(entry.rounds.load(std::memory_order_acquire) - 1);
  const Stage stage = from_.control.stage(static_cast<size_t>(from_.control.header().chunk_nbytes));
  skip_rounds(stage, from_.rank, rounds_base_, active_rounds_);
  negotiation_.segment().ring_waiters();  // not a team's to ring: this rank is in none
}

bool Executor::needs(int rank, uint64_t from) const {
  if (active_ != nullptr && from <= cursor_ && active_->needs(rank)) return true;
  return std::any_of(issued_.begin(), issued_.end(),
                     [&](const Issued& entry) { return from <= entry.position && entry.algorithm->needs(rank); });
}

// A rank that has consumed the entry has pushed all that others will ever get from it; they may still have to pull.
bool Executor::needs(int rank) const {
  return needs(rank, from_.control.line(rank).cursor.load(std::memory_order_acquire));
}

std::string Executor::why_cut(int rank) const {
  const std::unique_ptr<Link>& link = from_.links[static_cast<size_t>(rank)];
  return link != nullptr && needs(rank, 0) ? link->why_cut() : "";
}

// The callers of this rank's pending operations may write to their memory from here on. Other ranks of this host store
// into it, if it is registered, in all-reduces that are in the log: they begin no further chunk, and what they have
// begun is awaited. A chunk takes less than a millisecond; a rank that is stopped within one is not awaited for long.
void Executor::withdraw_memory() {
  if (submitted_.lock()->pending.logged().empty()) return;
  for (uint64_t position = 0; position < kLogEntries; ++position) {
    from_.control.claims(position)[from_.rank].withdrawn.store(1, std::memory_order_seq_cst);
  }
  from_.control.header().any_withdrawn.store(1, std::memory_order_seq_cst);
  const Deadline deadline = Deadline::after_s(kStoresEndS);
  for (uint64_t position = 0; position < kLogEntries; ++position) {
    for (const int r : from_.hosts.here()) {
      const std::atomic<uint32_t>& storing = from_.control.claims(position)[r].storing;
      while (r != from_.rank && storing.load(std::memory_order_seq_cst) != 0 && !members_.is_dead(r) &&
             !deadline.passed()) {
        std::this_thread::yield();
      }
    }
  }
}

// What the work streams have been told to do goes on in the memory of operations that have failed.
void Executor::drop() {
  if (active_ != nullptr || !issued_.empty()) planner_.on_device().abort_nccl();
  for (Issued& entry : issued_) from_.gpu.abandon(std::move(entry.algorithm), entry.members, false);
  issued_.clear();
  if (active_ != nullptr && active_members_.front()->signature.place == Place::kDevice) {
    from_.gpu.abandon(std::move(active_), active_members_, maps_gpu_memory(from_.control.entry(cursor_), from_.hosts));
  }
  active_.reset();
  active_members_.clear();
  withdraw_memory();
}

// What was read straight from the memory of a rank that has left since, without having seen the operation end, may have
// been anything: its owner was free to write there again. So it was where the group has failed, which ends the calls of
// the ranks that are not at work; the entry stays, and ends with that failure.
bool Executor::fail_if_memory_is_gone() {
  const Entry& entry = from_.control.entry(cursor_);
  if (static_cast<Algo>(entry.algorithm) != Algo::kDirect && !maps_gpu_memory(entry, from_.hosts)) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // look after reading
  if (has_failed(from_.control)) return true;
  return fail_if_somebody_is_gone(cursor_, *active_members_.front(), true);
}

// Whether a rank that takes part in an entry has left without having seen its end. only_here: of this host.
bool Executor::fail_if_somebody_is_gone(uint64_t position, const Operation& needing, bool only_here) const {
  std::atomic_thread_fence(std::memory_order_acquire);  // look after reading
  for (int r = 0; r < from_.size(); ++r) {
    if (r == from_.rank || !from_.control.entry(position).participants.test(r)) continue;
    if (only_here && !from_.hosts.is_here(r)) continue;
    const RankLine& line = from_.control.line(r);
    if (!has_left(line)) continue;
    if (line.cursor.load(std::memory_order_acquire) > position) continue;
    const auto submitted = submitted_.lock();
    members_.fail_because_left(r, &needing);
    return true;
  }
  return false;
}

void Executor::finish_entry() {
  const std::string failure = active_ != nullptr ? active_->failure() : "";
  active_.reset();
  end_members(active_members_, failure);
  active_members_.clear();
  go_on();
}

void Executor::end_members(const std::vector<OperationPtr>& members, const std::string& failure) {
  Stats& stats = from_.stats;
  if (!members.empty()) add(stats.buckets, 1);
  if (members.size() > 1) add(stats.fused_operations, members.size());
  const auto submitted = submitted_.lock();
  PendingOperations& pending = submitted->pending;
  for (const OperationPtr& operation : members) {
    if (!failure.empty()) {
      pending.fail(*operation, std::make_exception_ptr(InternalError(failure + " " + from_.where(*operation))));
    } else if (const std::string surprise = unexpected_rows(*operation, from_.rank); !surprise.empty()) {
      pending.fail(*operation, std::make_exception_ptr(MismatchError(surprise + " " + from_.where(*operation))));
    } else {
      pending.succeed(*operation);
    }
    pending.remove_logged(*operation);
  }
}

// To the next entry.
void Executor::go_on() {
  rounds_base_ += active_rounds_;
  ++cursor_;
  publish_ended();
}

// All entries before the first that the GPU is still at have ended here, and may be written anew.
void Executor::publish_ended() {
  std::atomic<uint64_t>& cursor = from_.control.line(from_.rank).cursor;
  const uint64_t before = cursor.load(std::memory_order_relaxed);
  const uint64_t ended = issued_.empty() ? cursor_ : issued_.front().position;
  cursor.store(ended, std::memory_order_release);
  // A rank may wait for this one to make room in a log that was full.
  if (ended != before && from_.control.header().log_tail.load(std::memory_order_relaxed) >= before + kLogEntries)
    negotiation_.segment().ring_waiters();
  // Threads of this rank may sleep on what has just finished.
  ring(*from_.bells[static_cast<size_t>(from_.rank)]);
}

void Executor::close() {
  drop();
  planner_.on_device().close_nccl();
}

}  // namespace rr
