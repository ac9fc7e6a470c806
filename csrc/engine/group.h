// A group of ranks as its members use it: submit, wait, and the execution of the group's log on this rank.
//
// Threads: submit and wait from any thread; progress() runs under the context's executor lock, on whichever thread is
// here.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/executor.h"
#include "negotiation/deadlock_timeout.h"
#include "relay/host_relay.h"

namespace rr {

class Context;
using Interrupt = void (*)();  // called now and then while a call blocks; may throw

class Group {
 public:
  Group(Context& context, int fd, std::vector<int> world_ranks, int id);

  const Context& context() const { return context_; }
  int rank() const { return rank_; }
  int size() const { return control_.size(); }
  int id() const { return id_; }
  const std::vector<int>& ranks() const { return world_ranks_; }
  const ControlSegment& control() const { return control_; }
  const Negotiation& negotiation() const { return negotiation_; }
  std::string here() const;  // how messages about this group begin; the bracket is left open

  // The synchronous all-reduce of the smallest tensors: true when it has been done. False when it cannot be done so
  // (then submit it).
  bool allreduce_quick(const TensorView& src, const TensorView& dst, const Reduction& reduction, Interrupt interrupt,
                       Codec codec = Codec::kNone);

  OperationPtr submit(const Request& request, Interrupt interrupt);
  void check_request(const Request& request) const;  // throws what submit() would, as far as this rank can tell
  OperationPtr send(const TensorView& src, int peer, int tag, std::shared_ptr<void> keep);
  // peer kAnyPeer: the next message of whichever rank; then the operation's peer says whose it was.
  OperationPtr receive(const TensorView& dst, int peer, int tag, std::shared_ptr<void> keep);
  void check_peer(int peer, bool outgoing) const;
  // Raises the operation's error. False when timeout_s (< 0: none) ran out first.
  bool wait(Operation& operation, double timeout_s, Interrupt interrupt);
  bool done(Operation& operation);
  // done(), for a caller that does not wait: gives the operation a push, and the name back once it has finished.
  bool poll(Operation& operation);
  std::string algorithm(Kind kind, size_t nbytes, DType dtype, bool registered) const;
  int join(Interrupt interrupt);

  // Executor lock held. True when something moved.
  bool progress(bool from_engine);
  // Whether progress() could find something to do now or later without a new submission.
  bool has_work() const { return is_busy() || relay_ != nullptr; }
  // Whether the engine should go on while nobody waits.
  bool is_busy() const {
    return pending_counts_.operations.load(std::memory_order_relaxed) != 0 || is_joining() ||
           backlog_.load(std::memory_order_relaxed);
  }
  // This rank is in join(), or was when an interrupt ended the call: it still has to skip what the others log.
  bool is_joining() const {
    return joining_.load(std::memory_order_relaxed) != 0 ||
           (has_joined_.load(std::memory_order_relaxed) && !has_failed(control_));
  }
  // Executor lock held. When the engine should look again at an open bucket; INT64_MAX = never.
  int64_t linger_until_ns() const { return executor_.linger_until_ns(); }
  // Timeouts, stalls and ranks that died or left; called a few times a second by sleepers and by the engine.
  void housekeep();
  // Executor lock held. This rank leaves all its groups: marks it, fails what is pending here. cause: see RankCause.
  static void leave(const std::vector<Group*>& groups, const std::string& cause);
  // Executor lock held. All members have agreed to end the group: fails what is pending here.
  void end();
  // Every member attached; throws TimeoutError naming the missing ones.
  void await_attendance(double timeout_s, Interrupt interrupt);
  void throw_if_failed() const;
  // For who waits for some members by other means than an operation: throws when one of them has left, or the group
  // has failed, as it does when one dies.
  void check_members(const std::vector<int>& ranks) const;
  void forget_counts();  // operation numbers and statistics start again
  bool ranks_outnumber_cores() const { return crowded_; }
  const Hosts& hosts() const { return hosts_; }
  // A thread that calls on GPU memory; the queue's own thread submits for it later.
  void record_caller();
  // Links to other hosts ring no bell: while there is work, somebody has to look.
  bool must_poll() const { return hosts_.several() && is_busy(); }
  // Executor lock held. Whether a library prepares something on the GPU; it rings no bell.
  bool must_poll_device() const { return executor_.must_poll_device(); }

 private:
  // submit.cc
  using Locked = Guarded<Submitted>::Access;
  void record_thread(Locked& submitted, bool is_from_queue = false);
  void wait_for_name(Locked& submitted, Operation& waiting, Interrupt interrupt,
                     const std::function<bool(PendingOperations&)>& announce);
  void wait_for_window(Locked& submitted, bool eager, Operation& waiting, Interrupt interrupt);
  void check_window(Operation& waiting);
  // leave.cc
  void mark_left(Attendance how);
  static void close_relays(const std::vector<Group*>& groups, Attendance how);
  bool relay_last(Attendance how, const std::function<bool(HostRelay&)>& step);
  void fail_as_shut_down();
  // messages.cc
  bool deliver_messages();
  OperationPtr message(const TensorView& tensor, int peer, int tag, std::shared_ptr<void> keep, bool outgoing);
  // memory_mismatch.cc
  void fail_if_other_memory(const Operation& operation);
  // group.cc, wait.cc, health.cc, join.cc
  std::unique_ptr<HostRelay> make_relay();
  bool relay();
  void pass_on();
  std::string waits_for(const Operation& operation);
  void look_for_deadlock_timeout(DeadlockTimeout::Waiter& waiter, const std::string& waits_for);
  bool wait_until_finished(Operation& operation, double timeout_s, Interrupt interrupt);
  void fail_if_needed_rank_left(const PendingOperations& pending, const std::vector<int>& cut_off);
  void fail_if_out_of_order(const PendingOperations& pending);
  void fail_group(const std::exception& error);
  void look_around();
  void look_at_lock_holders();
  void fail_if_unresponsive();
  void check_age(Operation& operation, int64_t now);
  std::string limit_text(double timeout_s) const;
  void throw_if_removed() const;
  void throw_if_closed(Kind kind) const;
  std::string where(const Operation& operation) const { return resources_.where(operation); }
  bool unblock();
  void give_back_name(const Operation& operation);
  void await_verdict(const std::function<bool()>& is_over);

  Context& context_;
  ControlSegment control_;
  std::vector<int> world_ranks_;
  int rank_;
  int id_;
  Hosts hosts_;
  Bells bells_;
  Negotiation negotiation_;
  std::vector<std::unique_ptr<Link>> links_;  // by group rank, for the algorithms over links
  std::unique_ptr<HostRelay> relay_;          // of a host's leader, on several hosts
  std::atomic<bool> backlog_{false};
  bool crowded_ = false;

  const Resources resources_;
  Members members_;
  PendingCounts pending_counts_;
  Guarded<Submitted> submitted_;
  // Written under the lock of submitted_, and read without it where an old value does no harm.
  std::atomic<uint32_t> joining_{0};  // 1: a thread is in join()
  std::atomic<bool> is_removed_{false};
  std::atomic<bool> has_joined_{false};  // this rank has told the others, and they have not all joined
  uint64_t joined_epoch_ = 0;            // then: the epoch
  bool has_drained_ = false;             // and whether it has told them that nothing of it is left

  Executor executor_;
};

}  // namespace rr
