// Group: life, waiting, and what is checked while waiting.

#include "engine/group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "engine/context.h"

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

std::vector<std::unique_ptr<Link>> links_of(const Board& board, int rank, int channel, const Bells& bells) {
  std::vector<std::unique_ptr<Link>> links;
  for (int peer = 0; peer < board.size(); ++peer) {
    links.push_back(peer == rank ? nullptr
                                 : shm_link(board.link_memory(channel, rank, peer),
                                            board.link_memory(channel, peer, rank), board.link_capacity(),
                                            *bells.wait[static_cast<size_t>(peer)]));
  }
  return links;
}

int index_of(const std::vector<int>& ranks, int rank) {
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) throw InvalidArgumentError("rank " + std::to_string(rank) + " is not a member of the group");
  return static_cast<int>(at - ranks.begin());
}

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

}  // namespace

Group::Group(Context& context, int fd, std::vector<int> world_ranks, int id)
    : context_(context),
      board_(Board::map(fd, static_cast<int>(world_ranks.size()))),
      world_ranks_(std::move(world_ranks)),
      rank_(index_of(world_ranks_, context.rank())),
      id_(id),
      // the world's own board holds the bells, so it must be known before they are looked up
      bells_((id == 0 ? context.publish_world(board_) : void(), bells_of(context, world_ranks_))),
      ledger_(board_, rank_, bells_, algo_from(context.settings().algorithm), context.settings().fusion_threshold,
              [this] {
                throw_if_failed();
                context_.watch_peers();
                fail_if_peers_died();
                throw_if_failed();
              }),
      links_(links_of(board_, rank_, 0, bells_)),
      point_to_point_(links_of(board_, rank_, 1, bells_)) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof cores, &cores);
  std::memcpy(board_.facts(rank_).cores, &cores, std::min(sizeof cores, sizeof(RankFacts)));
  board_.line(rank_).attendance.store(static_cast<uint32_t>(Attendance::kPresent), std::memory_order_release);
  for (Bell* bell : bells_.wait) ring(*bell);
}

Group::~Group() = default;

void Group::await_attendance(double timeout_s, Interrupt interrupt) {
  const auto absent = [this] {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (board_.line(r).attendance.load(std::memory_order_acquire) == 0) ranks.push_back(r);
    }
    return ranks;
  };
  const bool complete = context_.wait_until([&] { return absent().empty(); }, [] { return false; },
                                            Deadline::after_s(timeout_s), interrupt, true, [this] { throw_if_failed(); });
  if (!complete) throw TimeoutError("rank(s) " + list(absent()) + " did not attach to the group's memory");
  // Cores that the members may use together; a rank bound to one core still has the other ranks' cores beside it.
  RankFacts together = {};
  int cores = 0;
  for (int r = 0; r < size(); ++r) {
    for (size_t i = 0; i < std::size(together.cores); ++i) together.cores[i] |= board_.facts(r).cores[i];
  }
  for (const uint64_t word : together.cores) cores += __builtin_popcountll(word);
  crowded_ = size() > cores;
}

void Group::throw_if_failed() const {
  if (has_failed(board_)) throw_failure(board_);
}

void Group::forget_counts() {
  const std::lock_guard lock(mutex_);
  operations_ = 0;
  context_.stats().reset();
}

bool Group::wait_for_cells(Operation& operation, double timeout_s, Interrupt interrupt) {
  bool blocked = false;
  const auto finished = [&] {
    if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
    if (!operation.quick) {
      if (!operation.settled.load(std::memory_order_relaxed) && ledger_.complete(operation.ticket)) {
        const std::lock_guard lock(mutex_);
        settle(operation);
        return operation.state.load(std::memory_order_acquire) != State::kPending;
      }
      throw_if_failed();
      return blocked && ledger_.withdrawn();
    }
    if (ledger_.complete(operation.ticket)) return true;
    throw_if_failed();
    context_.throw_if_shut_down();
    return blocked && ledger_.withdrawn();
  };
  const auto tick = [&] {
    check_age(operation, now_ns());
    if (many_threads_ || operation.ticket.tag == 0) return;
    if (!blocked) {
      blocked = true;
      ledger_.block(operation.ticket, unnamed_);
    } else {
      ledger_.detect_deadlock();
    }
  };
  bool in_time = false;
  try {
    in_time = context_.wait_until(finished, [this] { return has_work(); },
                                  timeout_s < 0 ? Deadline::never() : Deadline::after_s(std::max(timeout_s, 1e-9)),
                                  interrupt, crowded_, tick);
  } catch (...) {
    if (blocked) ledger_.unblock();
    throw;
  }
  if (blocked) {
    const bool withdrawn = ledger_.withdrawn();
    const std::string text = withdrawn ? ledger_.withdraw_text() : "";
    if (withdrawn) withdraw();
    ledger_.unblock();
    if (withdrawn) throw MismatchError(text + " " + where(operation));
  }
  return in_time;
}

bool Group::wait(Operation& operation, double timeout_s, Interrupt interrupt) {
  operation.wanted.store(true, std::memory_order_relaxed);
  if (!done(operation)) {
    // A rank that sleeps here executes the log itself; the engine takes over what is left when it leaves.
    const bool in_time = wait_for_cells(operation, timeout_s, interrupt);
    if (has_work()) context_.wake_engine();
    if (!in_time) return false;
    done(operation);
  }
  give_back_name(operation);
  if (operation.state.load(std::memory_order_acquire) == State::kFailed) std::rethrow_exception(operation.error);
  return true;
}

bool Group::done(Operation& operation) {
  if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
  {
    const std::lock_guard lock(mutex_);
    if (operation.state == State::kPending && operation.quick) try_finish_quick(operation);
    if (!operation.quick) settle(operation);
  }
  if (operation.state.load(std::memory_order_acquire) != State::kPending) return true;
  throw_if_failed();
  return false;
}

bool Group::poll(Operation& operation) {
  operation.wanted.store(true, std::memory_order_relaxed);
  if (!operation.quick && operation.state.load(std::memory_order_acquire) == State::kPending) context_.try_progress();
  try {
    if (!done(operation)) return false;
  } catch (const Error&) {
    return true;  // wait() will not block: it raises this
  }
  give_back_name(operation);
  return true;
}

void Group::give_back_name(const Operation& operation) {
  if (operation.name.empty()) return;
  const std::lock_guard lock(mutex_);
  const auto busy = by_name_.find(operation.name);
  if (busy != by_name_.end() && busy->second.get() == &operation) by_name_.erase(busy);
}

std::string Group::algorithm(Kind kind, size_t nbytes, DType dtype, bool registered) const {
  if (kind == Kind::kBarrier || nbytes <= board_.header().eager_nbytes) {
    if (kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kBarrier) return "one_shot";
  }
  const Algo forced = algo_from(context_.settings().algorithm);
  const Reduction reduction = {dtype, ReduceOp::kSum, 1.0, 1.0, size()};
  if (kind == Kind::kAllreduce) return rr::name(select_allreduce(forced, reduction, registered));
  return rr::name(kind == Kind::kBroadcast ? select_broadcast(forced) : Algo::kTwoShot);
}

int Group::join(Interrupt interrupt) {
  context_.throw_if_shut_down();
  throw_if_failed();
  pending_.fetch_add(1);
  struct Leave {
    std::atomic<uint32_t>& pending;
    ~Leave() { pending.fetch_sub(1); }
  } leave{pending_};
  const uint64_t epoch = ledger_.join(unnamed_);
  bool drained = false;
  const auto finished = [&] {
    throw_if_failed();
    if (!drained) {
      const std::lock_guard lock(mutex_);
      for (const OperationPtr& operation : outstanding_) {
        if (operation != nullptr && operation->quick && operation->state == State::kPending) try_finish_quick(*operation);
        if (operation != nullptr) operation->wanted.store(true);
      }
      for (auto& [name, operation] : by_name_) {
        if (operation->quick && operation->state == State::kPending) try_finish_quick(*operation);
        operation->wanted.store(true);
        if (operation->state == State::kPending) return false;
      }
      if (unconsumed_ != unnamed_ || !logged_.empty()) return false;
    }
    // Drained means that all ranks have joined as well: until then this rank may have to skip entries of the log.
    if (!drained && board_.header().joined_count.load() == static_cast<uint32_t>(size())) {
      drained = true;
      ledger_.drained();
    }
    return drained && ledger_.join_finished(epoch);
  };
  context_.wait_until(finished, [] { return true; }, Deadline::never(), interrupt, crowded_, [this] { throw_if_failed(); });
  const JoinResult result = ledger_.join_result(epoch);
  const std::lock_guard lock(mutex_);
  unnamed_ = unconsumed_ = result.unnamed;
  least_watermark_ = 0;
  board_.line(rank_).watermark.store(unnamed_, std::memory_order_release);
  return result.last_joined;
}

// A deadlock verdict: what this rank has stated without a number of its own that all ranks share is void, and the
// counters go on where the rank that was ahead had come to.
void Group::withdraw() {
  const std::lock_guard lock(mutex_);
  const auto error = std::make_exception_ptr(MismatchError(ledger_.withdraw_text()));
  for (uint64_t c = unconsumed_; c < unnamed_; ++c) {
    const size_t at = c % kUnnamedCells;
    const OperationPtr operation = outstanding_[at];
    if (consumed_[at] || (operation != nullptr && ledger_.complete(operation->ticket))) continue;
    board_.head(at, rank_).tag.store(0);
    if (operation != nullptr && !operation->quick && logged_.erase(operation->ticket.cell) != 0) pending_.fetch_sub(1);
    if (operation != nullptr) fail(*operation, error);
    consume_unnamed(c);
  }
  for (const uint64_t end = ledger_.largest_unnamed(); unnamed_ < end;) consumed_[unnamed_++ % kUnnamedCells] = true;
  if (unconsumed_ < unnamed_) consume_unnamed(unnamed_ - 1);
  for (auto named = by_name_.begin(); named != by_name_.end();) {
    Operation& operation = *named->second;
    const bool void_now = operation.state == State::kPending &&
                          board_.head(operation.ticket.cell, rank_).tag.load() == 0;
    if (void_now) {
      operation.error = error;
      operation.keep.reset();
      operation.state.store(State::kFailed, std::memory_order_release);
      if (!operation.quick && logged_.erase(operation.ticket.cell) != 0) pending_.fetch_sub(1);
    }
    named = void_now ? by_name_.erase(named) : std::next(named);
  }
}

void Group::fail_if_peers_died() {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || !context_.is_dead(world_ranks_[static_cast<size_t>(r)])) continue;
    if (board_.line(r).attendance.load() == static_cast<uint32_t>(Attendance::kShutDown)) continue;
    record_failure(board_, FatalKind::kPeerLost,
                   "[ringreduce rank " + std::to_string(rank_) + "/" + std::to_string(size()) + " on " +
                       context_.hostname() + "] lost rank " + std::to_string(r) +
                       " (shm): its process has ended without shutdown(); see that rank's output for the reason");
    return;
  }
}

// A rank that left cleanly is missed only by the operations that still need it.
void Group::fail_if_needed_rank_left() {
  for (int r = 0; r < size(); ++r) {
    if (board_.line(r).attendance.load() != static_cast<uint32_t>(Attendance::kShutDown) || r == rank_) continue;
    const Operation* needing = nullptr;
    const auto needs = [&](const OperationPtr& operation) {
      if (operation == nullptr || operation->state != State::kPending) return;
      const auto missing = ledger_.missing(operation->ticket);
      if (std::find(missing.begin(), missing.end(), r) != missing.end()) needing = operation.get();
    };
    for (const auto& operation : outstanding_) needs(operation);
    for (const auto& [name, operation] : by_name_) needs(operation);
    const bool stuck = (active_ != nullptr && active_->needs(r)) || point_to_point_.waits_for(r) ||
                       board_.line(rank_).joined.load() != 0;
    if (needing == nullptr && !stuck) continue;
    record_failure(board_, FatalKind::kShutdown,
                   std::string("Horovod has been shut down. This was caused by an exception on one of the ranks or an "
                               "attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished "
                               "execution. (rank ") +
                       std::to_string(r) + " called shutdown() or ended; " +
                       (needing != nullptr ? where(*needing) : "[ringreduce rank " + std::to_string(rank_) + "]") + ")");
    return;
  }
}

void Group::check_age(Operation& operation, int64_t now) {
  const Settings& settings = context_.settings();
  const double age_s = static_cast<double>(now - operation.submitted_ns) * 1e-9;
  if (settings.timeout_s > 0 && age_s > settings.timeout_s) {
    const std::string missing = list(ledger_.missing(operation.ticket));
    record_failure(board_, FatalKind::kTimeout,
                   where(operation) + " did not finish within RINGREDUCE_TIMEOUT=" + std::to_string(settings.timeout_s) +
                       " s; " + (missing.empty() ? "every rank has submitted it, so one of them is stuck in it"
                                                 : "missing rank(s): " + missing));
  }
  if (settings.stall_warning_s > 0 && age_s > settings.stall_warning_s && !operation.warned) {
    operation.warned = true;
    context_.log().warning(where(operation) + " has been waiting for " + std::to_string(static_cast<int>(age_s)) +
                           " s for rank(s) " + list(ledger_.missing(operation.ticket)) +
                           "; the other ranks have submitted it");
  }
}

// Executor lock held.
void Group::housekeep() {
  if (has_failed(board_)) return;
  fail_if_peers_died();
  const std::lock_guard lock(mutex_);
  fail_if_needed_rank_left();
  const int64_t now = now_ns();
  for (const auto& operation : outstanding_) {
    if (operation != nullptr && operation->quick && operation->state == State::kPending) try_finish_quick(*operation);
  }
  std::vector<OperationPtr> logged;
  for (const auto& [cell, operation] : logged_) logged.push_back(operation);
  for (const OperationPtr& operation : logged) {
    settle(*operation);
    if (operation->state == State::kPending) check_age(*operation, now);
  }
  for (auto named = by_name_.begin(); named != by_name_.end();) {
    Operation& operation = *named->second;
    if (operation.quick && operation.state == State::kPending) try_finish_quick(operation);
    const bool dropped = operation.state != State::kPending && named->second.use_count() == 1;
    named = dropped ? by_name_.erase(named) : std::next(named);
  }
}

// Executor lock held, the engine is gone.
void Group::leave() {
  board_.line(rank_).attendance.store(static_cast<uint32_t>(Attendance::kShutDown), std::memory_order_release);
  ledger_.ring_all();
  const std::lock_guard lock(mutex_);
  active_.reset();
  active_members_.clear();
  std::exception_ptr error;
  try {
    context_.throw_if_shut_down();
  } catch (...) {
    error = std::current_exception();
  }
  fail_everything(error);
}

}  // namespace rr
