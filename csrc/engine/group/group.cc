#include "engine/group/group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/text.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"
#include "engine/group/group_links.h"

namespace rr {
namespace {
// Goes through the log, unlike a barrier.
Request small_allgather(const std::string& name) {
  const auto value = std::make_shared<uint8_t>(0);
  TensorView tensor;
  tensor.data = reinterpret_cast<std::byte*>(value.get());
  tensor.set_shape(1, [](size_t) { return 1; });
  Request request;
  request.kind = Kind::kAllgather;
  request.srcs = {tensor};
  request.name = &name;
  request.keep = value;
  return request;
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
      relay_(parts_, relay_of(parts_)),
      executor_(resources_, negotiation_, members_, submitted_, pending_counts_),
      watchdog_(parts_, executor_, relay_),
      deadlock_watch_(parts_),
      waiter_(parts_, relay_, watchdog_, deadlock_watch_),
      announce_waiter_(parts_, watchdog_, deadlock_watch_, waiter_),
      withdrawal_(parts_, waiter_),
      joining_(parts_, waiter_, deadlock_watch_),
      submitter_(parts_, executor_, relay_, deadlock_watch_, announce_waiter_, joining_),
      quick_allreduce_(parts_, relay_, waiter_, deadlock_watch_, joining_),
      end_(parts_, executor_, relay_, pending_counts_, joining_) {
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
  if (has_failed(control_)) return end_.fail_pending() || moved;
  try {
    moved |= executor_.deliver_messages();
    return executor_.step(from_engine, relay_.host()) || moved;
  } catch (const std::exception& error) {
    parts_.fail(error);
    return true;
  }
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

// Every member writes the same values, so it does not matter who is first.
void Group::copy_sizes(const Group& world) {
  const Header& from = world.control_.header();
  Header& to = control_.header();
  to.chunk_nbytes = from.chunk_nbytes.load();
  to.device_chunk_nbytes = from.device_chunk_nbytes.load();
  to.eager_nbytes = world.hosts_.several() ? usual_eager_nbytes(hosts_) : from.eager_nbytes.load();
  to.tuned.store(kTuned, std::memory_order_release);
}

// After the first barrier all know what quick operations all have called. Those of the log come to other hosts another
// way: behind an entry of the log all that were called before it have come. After the second barrier nobody needs the
// others' part in anything.
void Group::finish_all(Interrupt interrupt) {
  try {
    Request request;
    wait(*submit(request, interrupt), -1, interrupt);
    // Named: another thread may still count calls of this rank alone.
    const std::string logged = "ringreduce.removing";
    if (hosts_.several()) wait(*submit(small_allgather(logged), interrupt), -1, interrupt);
    withdrawal_.finish_complete(interrupt);
    const std::string name = "ringreduce.removed";
    request.name = &name;
    wait(*submit(request, interrupt), -1, interrupt);
  } catch (const MismatchError& error) {  // an unnamed operation that not all have called: the others wait behind it
    parts_.fail(error);
    throw;
  } catch (const Error&) {
    throw;
  } catch (...) {  // of the interrupt: a second call would begin anew, where the other members have gone on
    withdrawal_.fail_as_interrupted(parts_.from.here() + "] remove_process_set",
                                    "its members do not agree how far they have come");
    throw;
  }
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

void Group::leave(const std::vector<Group*>& groups, const std::string& cause) {
  std::vector<GroupEnd*> ends;
  for (Group* group : groups) ends.push_back(&group->end_);
  GroupEnd::leave(ends, cause);
}

}  // namespace rr
