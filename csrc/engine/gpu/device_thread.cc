// DeviceQueue: its thread. Asleep while nothing is in flight; polls while something is.

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"

namespace rr {
namespace {
constexpr int64_t kIdleNs = 1000000000;  // arrivals ring, so this only bounds what a lost wake-up would cost
// Neither peers nor work streams ring. After as long as any wait polls, one look every 50 us is 4 % of a core, and a
// look that comes 50 us late is at most as much as the operation has taken until then.
constexpr int64_t kNapNs = 50000;
}  // namespace

void DeviceQueue::run() {
  const int64_t spin_ns = static_cast<int64_t>(context_.settings().spin_us * 1000);
  int64_t quiet_since = 0;
  while (!stop_.load(std::memory_order_acquire)) {
    bool moved = take_arrivals();
    moved |= start_ready();
    moved |= advance();
    if (moved) {
      quiet_since = 0;
      continue;
    }
    const bool idle = ready_.empty() && active_.empty();
    if (idle && context_.is_in_transit()) context_.wait_loop().wake_engine();  // this thread has been at work alone
    if (!idle) {
      const int64_t now = now_ns();
      if (quiet_since == 0) quiet_since = now;
      if (now - quiet_since < spin_ns) {
        relax(context_.world().ranks_outnumber_cores());
        continue;
      }
    }
    const SleepScope scope(arrivals_->bell());
    const uint32_t seen = arrivals_->bell().seq.load(std::memory_order_seq_cst);
    if (!arrivals_->empty() || stop_.load()) continue;
    sleep_on(arrivals_->bell(), seen, idle ? kIdleNs : kNapNs);
  }
}

bool DeviceQueue::take_arrivals() {
  Arrival* next = arrivals_->take();
  if (next == nullptr) return false;
  std::vector<DeviceOperationPtr> come;
  std::vector<DeviceOperationPtr> gone;  // let go of without the mutex
  const std::lock_guard lock(mutex_);
  while (next != nullptr) {
    Arrival* const arrival = next;
    next = arrival->next;  // before the count is taken: from then on it may come again
    DeviceOperation& operation = *arrival->operation;
    const bool is_ready = operation.arrived >= operation.streams;  // a replay that has not started yet
    operation.arrived += arrival->count.exchange(0, std::memory_order_acq_rel);
    if (operation.arrived >= operation.streams && !is_ready) come.push_back(operation.shared_from_this());
  }
  std::reverse(come.begin(), come.end());
  for (DeviceOperationPtr& operation : come) {
    operation->is_reached.store(true);
    if (operation->is_recurring) {
      if (operation->is_cancelled.load()) {
        DeviceWords::write(operation->word);
        operation->arrived = 0;
        continue;
      }
      operation->state.store(State::kPending);
    } else {
      unreached_.fetch_sub(1);
      if (operation->state.load() != State::kPending) {  // cancelled, and kept for its marker's sake alone
        gone.push_back(operation);
        all_.erase(operation.get());
        continue;
      }
    }
    ready_.push_back(std::move(operation));
  }
  return true;
}

// In the order of arrival, but one after the other where they have the same name: the group has a name once.
bool DeviceQueue::start_ready() {
  bool moved = false;
  for (size_t i = 0; i < ready_.size();) {
    DeviceOperation& operation = *ready_[i];
    if (operation.is_cancelled.load()) {
      const DeviceOperationPtr keep = ready_[i];
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(i));
      finish(*keep, State::kFailed, keep->error);
      moved = true;
      continue;
    }
    if (operation.before != nullptr && done(*operation.before)) operation.before.reset();
    const bool is_busy = operation.before != nullptr || busy_.count({operation.group.get(), operation.name}) != 0;
    if (is_busy) {
      ++i;
      continue;
    }
    const DeviceOperationPtr started = ready_[i];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
    operation.arrived -= operation.streams;
    try {
      start(operation);
    } catch (const std::exception&) {
      finish(operation, State::kFailed, std::current_exception());
      continue;
    }
    busy_.insert({operation.group.get(), operation.name});
    active_.push_back(started);
    if (operation.is_recurring && operation.arrived >= operation.streams) ready_.push_back(started);
  }
  return moved;
}

void DeviceQueue::start(DeviceOperation& operation) {
  operation.copied.reset();
  if (operation.task == DeviceTask::kCopy) return;
  if (operation.task != DeviceTask::kCollective) {
    const std::vector<TensorView>& tensors =
        operation.task == DeviceTask::kSend ? operation.request.srcs : operation.request.dsts;
    operation.staging = staging_.take(tensors[0].nbytes());
  }
  if (operation.task == DeviceTask::kSend) return;
  OperationPtr inner = operation.task == DeviceTask::kReceive ? begin_message(operation)
                                                              : operation.group->submit(operation.request, nullptr);
  const std::lock_guard lock(mutex_);
  operation.inner = std::move(inner);
}

bool DeviceQueue::advance() {
  if (active_.empty()) return false;
  bool moved = context_.try_progress();
  const bool more_to_come = unreached_.load() != 0 || !ready_.empty();
  for (size_t i = 0; i < active_.size();) {
    DeviceOperation& operation = *active_[i];
    std::exception_ptr error;
    std::optional<State> end;
    try {
      end = look_at(operation, more_to_come, error);
    } catch (const std::exception&) {
      end = State::kFailed;
      error = std::current_exception();
    }
    if (!end.has_value() && operation.is_cancelled.load()) {
      end = State::kFailed;
      error = operation.error;
    }
    if (!end.has_value()) {
      ++i;
      continue;
    }
    const DeviceOperationPtr ended = active_[i];
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    busy_.erase({operation.group.get(), operation.name});
    if (*end == State::kDone) {
      staging_.give_back(std::move(operation.staging));
    } else {
      staging_.retire(std::move(operation.staging));
    }
    finish(operation, *end, error);
    moved = true;
  }
  return moved;
}

// An open bucket takes further tensors while some are on their way here, for as long as any bucket lingers; it is
// closed at once when a stream waits and nothing more is to come, or a thread waits.
std::optional<State> DeviceQueue::look_at(DeviceOperation& operation, bool more_to_come, std::exception_ptr& error) {
  const bool copies_first = operation.task == DeviceTask::kSend || operation.task == DeviceTask::kCopy;
  if (operation.inner == nullptr && copies_first) {
    if (!copy_on(operation)) return std::nullopt;
    if (operation.task == DeviceTask::kCopy) return State::kDone;
    OperationPtr inner = begin_message(operation);
    const std::lock_guard lock(mutex_);
    operation.inner = std::move(inner);
    return std::nullopt;
  }
  Operation& inner = *operation.inner;
  Group& group = *operation.group;
  if (operation.is_urgent.load() || (operation.is_claimed.load() && !more_to_come)) {
    inner.wanted.store(true, std::memory_order_relaxed);
  }
  try {
    group.done(inner);
  } catch (const Error&) {
    // The group has failed. An operation of the log is failed by progress(), once nothing works on its memory.
    if (inner.quick) throw;
  }
  const State state = inner.state.load(std::memory_order_acquire);
  if (state == State::kPending) return std::nullopt;
  if (state == State::kFailed) error = inner.error;
  if (operation.task == DeviceTask::kCollective) {
    group.poll(inner);  // gives the name back
  } else if (state == State::kDone && operation.task == DeviceTask::kReceive) {
    if (!copy_on(operation)) return std::nullopt;
  }
  return state;
}

void DeviceQueue::finish(DeviceOperation& operation, State state, std::exception_ptr error) {
  DeviceOperationPtr ended;  // outlives the lock
  {
    const std::lock_guard lock(mutex_);
    ended = finish_locked(operation, state, std::move(error));
  }
  context_.wait_loop().wake_callers();
}

// mutex_ held. What the queue had of the operation.
DeviceOperationPtr DeviceQueue::finish_locked(DeviceOperation& operation, State state, std::exception_ptr error) {
  DeviceOperationPtr ended = operation.shared_from_this();
  operation.error = std::move(error);
  if (operation.error != nullptr) {
    operation.error_is_fatal = has_failed(operation.group->control()) || context_.is_shut_down() || is_stopped_;
  }
  const bool is_next_ready = operation.is_recurring && operation.arrived >= operation.streams;
  operation.state.store(is_next_ready ? State::kPending : state, std::memory_order_release);
  DeviceWords::write(operation.word);
  if (operation.is_recurring) {
    // Nobody asks after a replay, so the first failure is told at once.
    const bool is_news = state == State::kFailed && !operation.error_is_fatal;
    if (is_news && !operation.was_asked.exchange(true)) operation.unheard->keep(operation.error);
    return ended;
  }
  operation.request.keep.reset();
  const auto latest = latest_.find({operation.group.get(), operation.name});
  if (latest != latest_.end() && latest->second == &operation) latest_.erase(latest);
  words_->give_back(operation.word);
  if (operation.is_reached.load()) all_.erase(&operation);
  return ended;
}

}  // namespace rr
