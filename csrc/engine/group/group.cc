#include "engine/group/group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/text.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"

namespace rr {
namespace {

Bells bells_of(Context& context, const std::vector<int>& world_ranks) {
  Bells bells;
  for (const int r : world_ranks) {
    bells.wait.push_back(&context.wait_bell(r));
    bells.engine.push_back(&context.engine_bell(r));
  }
  return bells;
}

constexpr int kLeaderChannel = kChannels;  // of the links between leaders
constexpr double kLateS = 1.0;             // all hosts are shown who has announced an operation that takes longer

std::unique_ptr<Link> remote_link(Context& context, int id, int channel, int world_rank) {
  return context.remote_link(world_rank, channel_of(id, channel));
}

std::vector<std::unique_ptr<Link>> links_of(Context& context, const ControlSegment& control,
                                            const std::vector<int>& world_ranks, const Hosts& hosts, int rank, int id,
                                            int channel, const Bells& bells) {
  std::vector<std::unique_ptr<Link>> links;
  for (int peer = 0; peer < control.size(); ++peer) {
    if (peer == rank) {
      links.push_back(nullptr);
    } else if (hosts.is_here(peer)) {
      links.push_back(shm_link(control.link_memory(channel, rank, peer), control.link_memory(channel, peer, rank),
                               control.link_capacity(), *bells.wait[static_cast<size_t>(peer)]));
    } else {
      links.push_back(remote_link(context, id, channel, world_ranks[static_cast<size_t>(peer)]));
    }
  }
  return links;
}

Hosts hosts_of(const Context& context, const std::vector<int>& world_ranks, int rank) {
  std::vector<int> labels;
  for (const int r : world_ranks) labels.push_back(context.host_of(r));
  return Hosts(labels, rank);
}

int index_of(const std::vector<int>& ranks, int rank) {
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) throw InvalidArgumentError("rank " + std::to_string(rank) + " is not a member of the group");
  return static_cast<int>(at - ranks.begin());
}

}  // namespace

Group::Group(Context& context, int fd, std::vector<int> world_ranks, int id)
    : context_(context),
      control_(ControlSegment::map(fd, static_cast<int>(world_ranks.size()))),
      world_ranks_(std::move(world_ranks)),
      rank_(index_of(world_ranks_, context.rank())),
      id_(id),
      hosts_(hosts_of(context, world_ranks_, rank_)),
      // the world's own control segment holds the bells, so it must be known before they are looked up
      bells_((id == 0 ? context.publish_world(control_) : void(), bells_of(context, world_ranks_))),
      negotiation_(
          control_, rank_, world_ranks_, hosts_, bells_, algo_from(context.settings().algorithm),
          context.settings().fusion_threshold, [this] { watchdog_.look_at_lock_holders(); },
          context.settings().gpu_path),
      links_(links_of(context, control_, world_ranks_, hosts_, rank_, id, 0, bells_)),
      resources_({control_, negotiation_, hosts_, rank_, world_ranks_, id, bells_.wait, links_, context.kernels(),
                  context.segments(), context.settings(), context.log(), context.stats(), context.gpu(),
                  context.recorder(), context.recorded_group(id, world_ranks_), [this] { return here(); }}),
      members_(
          resources_, [this](int world_rank) { return context_.peers().cause_of_death(world_rank); },
          [this] { return context_.deadlock_text(); }),
      submitted_(resources_, negotiation_, links_of(context, control_, world_ranks_, hosts_, rank_, id, 1, bells_),
                 pending_counts_),
      parts_{context,
             resources_,
             negotiation_,
             members_,
             submitted_,
             [this] { return has_work(); },
             [this] { return is_busy(); }},
      relay_(parts_, hosts_.several() && hosts_.leader_here() == rank_ ? make_relay() : nullptr),
      executor_(resources_, negotiation_, members_, submitted_, pending_counts_),
      watchdog_(parts_, executor_, relay_),
      waiter_(parts_, relay_, watchdog_),
      joining_(parts_, waiter_),
      submitter_(parts_, executor_, relay_, waiter_, joining_),
      quick_allreduce_(parts_, relay_, waiter_, joining_) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof cores, &cores);
  RankFacts& facts = control_.facts(rank_);
  std::memcpy(facts.cores, &cores, std::min(sizeof cores, sizeof facts.cores));
  if (id_ == 0) context_.identify_world(control_, hosts_);
  control_.line(rank_).seen_ns.store(now_ns(), std::memory_order_relaxed);
  control_.line(rank_).attendance.store(Attendance::kPresent, std::memory_order_release);
  for (Bell* bell : bells_.wait) ring(*bell);
}

std::unique_ptr<HostRelay> Group::make_relay() {
  std::vector<std::unique_ptr<Link>> links;
  for (int host = 0; host < hosts_.count(); ++host) {
    const int peer = world_ranks_[static_cast<size_t>(hosts_.leader(host))];
    links.push_back(host == hosts_.mine ? nullptr : remote_link(context_, id_, kLeaderChannel, peer));
  }
  // Early enough for what is said when an operation has taken too long.
  double late_s = kLateS;
  for (const double limit_s : {context_.timeout_s(), context_.settings().stall_warning_s}) {
    if (limit_s > 0) late_s = std::min(late_s, limit_s / 4);
  }
  // One group's leaders tell the clocks of all hosts.
  Recorder* const recorder = id_ == 0 ? &context_.recorder() : nullptr;
  return std::make_unique<HostRelay>(control_, hosts_, negotiation_, std::move(links), late_s, recorder,
                                     resources_.recorded_group, context_.do_links_ring());
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

std::string Group::calls_text() {
  const auto submitted = submitted_.lock();
  if (submitted->calls.count() == 0) return "";
  std::string text = "called " + submitted->calls.last_of_all() + " last";
  if (id_ != 0) text += " in process set [" + some_of(world_ranks_) + "]";
  for (const OperationPtr& operation : submitted->pending.oldest_first()) {
    const std::vector<int> missing = members_.missing(*operation);
    if (missing.empty() || operation->discard) continue;
    return text + ", and " + called_shortly(operation->kind, operation->name, operation->number) +
           " waits for rank(s) " + some_of(missing);
  }
  const OperationPtr message = submitted->pending.messages().oldest();
  return message == nullptr ? text : text + ", and " + called(*message) + " is under way";
}

bool Group::progress(bool from_engine) {
  bool moved = relay_.progress(from_engine);
  if (has_failed(control_)) return fail_pending() || moved;
  try {
    moved |= executor_.deliver_messages();
    return executor_.step(from_engine, relay_.host()) || moved;
  } catch (const std::exception& error) {
    parts_.fail(error);
    return true;
  }
}

// The group has failed. True when something was pending.
bool Group::fail_pending() {
  if (pending_counts_.operations.load(std::memory_order_relaxed) == 0 && !joining_.is_called()) return false;
  executor_.drop();
  try {
    throw_if_failed();
  } catch (...) {
    const auto submitted = submitted_.lock();
    PendingOperations& pending = submitted->pending;
    // Ranks that differ in an operation are told that, also by one whose end has failed the group meanwhile.
    const std::unordered_map<uint64_t, OperationPtr> logged = pending.logged();
    for (const auto& [request_slot, operation] : logged) pending.settle(*operation);
    pending.fail_all(std::current_exception());
  }
  negotiation_.segment().ring_all();
  return true;
}

void Group::housekeep() {
  try {
    control_.line(rank_).seen_ns.store(now_ns(), std::memory_order_relaxed);
    if (relay_.exists()) relay_.host()->look_for_deadlock();
    relay_.progress(false);
    if (!has_failed(control_)) watchdog_.look();
  } catch (const std::exception& error) {
    parts_.fail(error);
  }
}

int Group::join(Interrupt interrupt) {
  return joining_.join(interrupt, [&] {
    if (context_.gpu().device() != nullptr) context_.gpu().queue().await_announced(*this, interrupt);
  });
}

void Group::await_attendance(double timeout_s, Interrupt interrupt) {
  const auto absent = [this] {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (control_.line(r).attendance.load(std::memory_order_acquire) == Attendance::kAbsent) ranks.push_back(r);
    }
    return ranks;
  };
  // Who has died or left is seen by the world's group, which is there before all others.
  const auto tick = [this] {
    throw_if_failed();
    if (id_ != 0) context_.world().check_members(world_ranks_);
  };
  const bool complete = context_.wait_loop().wait_until([&] { return absent().empty(); }, [] { return false; },
                                                        Deadline::after_s(timeout_s), interrupt, true, tick);
  if (!complete) {
    throw TimeoutError("rank(s) " + list_of(absent()) + " did not attach to the group's memory within " +
                       seconds_text(timeout_s) + " s");
  }
  // Cores that the members may use together; a rank bound to one core still has the other ranks' cores beside it.
  RankFacts together = {};
  int cores = 0;
  for (int r = 0; r < size(); ++r) {
    for (size_t i = 0; i < std::size(together.cores); ++i) together.cores[i] |= control_.facts(r).cores[i];
  }
  for (const uint64_t word : together.cores) cores += __builtin_popcountll(word);
  parts_.ranks_outnumber_cores = static_cast<int>(hosts_.here().size()) > cores;
}

void Group::check_members(const std::vector<int>& ranks) const {
  context_.throw_if_shut_down();
  throw_if_failed();
  members_.check(ranks);
}

void Group::forget_counts() {
  submitted_.lock()->calls.restart();
  context_.stats().reset();
}

std::string Group::algorithm(Kind kind, size_t nbytes, DType dtype, bool registered) const {
  if (kind == Kind::kBarrier || nbytes <= control_.header().eager_nbytes) {
    if (kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kBarrier) return "one_shot";
  }
  const Algo forced = algo_from(context_.settings().algorithm);
  const Reduction reduction = {dtype, ReduceOp::kSum, 1.0, 1.0, size()};
  if (hosts_.several()) {
    return rr::name(select_across_hosts(forced, kind == Kind::kAllreduce ? &reduction : nullptr, Codec::kNone));
  }
  if (kind == Kind::kAllreduce) return rr::name(select_allreduce(forced, reduction, registered));
  return rr::name(select_movement(forced, kind == Kind::kBroadcast, registered && can_be_direct(kind)));
}

// Executor lock held, the engine is gone.
void Group::leave(const std::vector<Group*>& groups, const std::string& cause) {
  for (Group* group : groups) {
    write_text(group->control_.cause(group->rank_).text, cause);
    group->mark_left(Attendance::kShutDown);
  }
  std::vector<GroupRelay*> relays;
  for (Group* group : groups) relays.push_back(&group->relay_);
  GroupRelay::close(relays, Attendance::kShutDown);
  for (Group* group : groups) group->fail_as_shut_down();
}

void Group::end() {
  executor_.close();
  {
    const auto submitted = submitted_.lock();
    parts_.is_removed = true;
    submitted->pending.fail_all(std::make_exception_ptr(
        ShutdownError(here() + "] the process set was removed while this operation was pending")));
    ring(*bells_.wait[static_cast<size_t>(rank_)]);
  }
  mark_left(Attendance::kRemoved);
  // Other hosts may not have heard yet that this one has agreed.
  GroupRelay::close({&relay_}, Attendance::kRemoved);
}

void Group::mark_left(Attendance how) {
  {
    const auto submitted = submitted_.lock();
    const PendingOperations& pending = submitted->pending;
    if (pending.logged().empty()) control_.line(rank_).cursor.store(kFinished, std::memory_order_release);
    for (int r = 0; r < size(); ++r) control_.messages_sent(rank_, r).store(pending.messages().sent(r));
  }
  control_.line(rank_).attendance.store(how, std::memory_order_release);
}

void Group::fail_as_shut_down() {
  // Its full fence: whoever reads what is written to registered memory from here on sees that this rank has left.
  negotiation_.segment().ring_all();
  executor_.close();
  const auto submitted = submitted_.lock();
  std::exception_ptr error;
  try {
    context_.throw_if_shut_down();
  } catch (...) {
    error = std::current_exception();
  }
  submitted->pending.fail_all(error);
  ring(*bells_.wait[static_cast<size_t>(rank_)]);
}

}  // namespace rr
