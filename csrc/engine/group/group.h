// A group of ranks as its members use it: submit, wait, and the execution of the group's log on this rank. The work is
// done by its parts.
//
// Threads: submit and wait from any thread; progress() runs under the context's executor lock, on whichever thread is
// here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/group/group_end.h"
#include "engine/group/quick_allreduce.h"
#include "engine/group/submitter.h"
#include "engine/group/wait/withdrawal.h"

namespace rr {

// Who needs what links to other hosts bring. kCallers: only calls of this rank, which look at the links themselves as
// soon as they wait. kOthers: also another rank, or an operation of the log, a message, a join() or unsent frames of
// this rank.
enum class LinkNeed { kNobody, kCallers, kOthers };

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
  const Hosts& hosts() const { return hosts_; }
  const RecordedGroup& recorded_group() const { return resources_.recorded_group; }
  bool ranks_outnumber_cores() const { return parts_.ranks_outnumber_cores; }
  std::string here() const;  // how messages about this group begin; the bracket is left open
  // What this rank has called here last, and what it waits for: "called allreduce 'loss' #12 last". "": nothing.
  std::string calls_text();
  std::string algorithm(Kind kind, size_t nbytes, DType dtype, bool registered) const;

  // The synchronous all-reduce of the smallest tensors: true when it has been done. False when it cannot be done so
  // (then submit it).
  bool allreduce_quick(const TensorView& src, const TensorView& dst, const Reduction& reduction, Interrupt interrupt,
                       Codec codec = Codec::kNone) {
    return quick_allreduce_.run(src, dst, reduction, interrupt, codec);
  }
  OperationPtr submit(const Request& request, Interrupt interrupt) { return submitter_.submit(request, interrupt); }
  void check_request(const Request& request) const { submitter_.check_request(request); }
  OperationPtr send(const TensorView& src, int peer, int tag, std::shared_ptr<void> keep) {
    return submitter_.message(src, peer, tag, std::move(keep), true);
  }
  // peer kAnyPeer: the next message of whichever rank; then the operation's peer says whose it was.
  OperationPtr receive(const TensorView& dst, int peer, int tag, std::shared_ptr<void> keep) {
    return submitter_.message(dst, peer, tag, std::move(keep), false);
  }
  void check_peer(int peer, bool outgoing) const { submitter_.check_peer(peer, outgoing); }
  // Raises the operation's error. False when timeout_s (< 0: none) ran out first.
  bool wait(Operation& operation, double timeout_s, Interrupt interrupt) {
    return waiter_.wait(operation, timeout_s, interrupt);
  }
  std::string pending_text(const Operation& operation, double timeout_s) const {
    return waiter_.pending_text(operation, timeout_s);
  }
  // For a synchronous call that an exception has ended: see Withdrawal.
  void withdraw(Operation& operation, Interrupt interrupt) { withdrawal_.withdraw(operation, interrupt); }
  bool is_under_way(const Operation& operation) const { return withdrawal_.is_under_way(operation); }
  // Collective, before the group is removed: what all members have called is finished, and no member needs another one
  // for the rest.
  void finish_all(Interrupt interrupt);
  void fail_as_interrupted(const std::string& operation, const std::string& cause) const {
    withdrawal_.fail_as_interrupted(operation, cause);
  }
  bool done(Operation& operation) { return waiter_.done(operation); }
  // done(), for a caller that does not wait: gives the operation a push, and the name back once it has finished.
  bool poll(Operation& operation) { return waiter_.poll(operation); }
  int join(Interrupt interrupt);
  // A thread that calls on GPU memory; the queue's own thread submits for it later.
  void record_caller() { submitted_.lock()->calls.record_caller(); }
  void forget_counts();  // operation numbers and statistics start again

  void copy_sizes(const Group& world);  // what tune() has chosen there
  // Every member attached; throws TimeoutError naming the missing ones.
  void await_attendance(double timeout_s, Interrupt interrupt);
  void throw_if_failed() const { parts_.throw_if_failed(); }
  // For who waits for some members by other means than an operation: throws when one of them has left, or the group
  // has failed, as it does when one dies.
  void check_members(const std::vector<int>& ranks) const;

  // Whether progress() could find something to do now or later without a new submission.
  bool has_work() const { return is_busy() || relay_.exists(); }
  // Whether the engine should go on while nobody waits.
  bool is_busy() const {
    return pending_counts_.operations.load(std::memory_order_relaxed) != 0 || joining_.is_joining() ||
           relay_.has_backlog() || relay_.must_fetch();
  }
  bool is_joining() const { return joining_.is_joining(); }
  // Links ring no bell: while somebody needs them, somebody has to look.
  LinkNeed link_need() const {
    if (!hosts_.several() || !is_busy()) return LinkNeed::kNobody;
    const bool has_quick_alone = !joining_.is_joining() && !relay_.has_backlog() &&
                                 pending_counts_.operations.load(std::memory_order_relaxed) == 0;
    return has_quick_alone && hosts_.here().size() == 1 ? LinkNeed::kCallers : LinkNeed::kOthers;
  }
  // Whether something is under way that does not end by its callers' looks alone.
  bool must_go_on() const { return is_busy() && link_need() != LinkNeed::kCallers; }

  // Executor lock held, for all below. True when something moved.
  bool progress(bool from_engine);
  // Whether a library prepares something on the GPU; it rings no bell.
  bool must_poll_device() const { return executor_.must_poll_device(); }
  // Whether a kernel of this rank's may be waiting for those of others.
  bool waits_on_device_for_peers() const { return executor_.waits_on_device_for_peers(); }
  // When the engine should look again at an open bucket; INT64_MAX = never.
  int64_t linger_until_ns() const { return executor_.linger_until_ns(); }
  // Timeouts, stalls and ranks that died or left; called a few times a second by sleepers and by the engine.
  void housekeep();
  // This rank leaves all its groups: marks it, fails what is pending here. cause: see RankCause.
  static void leave(const std::vector<Group*>& groups, const std::string& cause);
  // All members have agreed to end the group: fails what is pending here.
  void end() { end_.remove(); }

 private:
  Context& context_;
  ControlSegment control_;
  std::vector<int> world_ranks_;
  int rank_;
  int id_;
  Hosts hosts_;
  Bells bells_;
  Negotiation negotiation_;
  std::vector<std::unique_ptr<Link>> links_;  // by group rank, for the algorithms over links

  const Resources resources_;
  Members members_;
  PendingCounts pending_counts_;
  Guarded<Submitted> submitted_;
  GroupParts parts_;
  GroupRelay relay_;
  Executor executor_;
  Watchdog watchdog_;
  DeadlockWatch deadlock_watch_;
  Waiter waiter_;
  AnnounceWaiter announce_waiter_;
  Withdrawal withdrawal_;
  Joining joining_;
  Submitter submitter_;
  QuickAllreduce quick_allreduce_;
  GroupEnd end_;
};

}  // namespace rr
