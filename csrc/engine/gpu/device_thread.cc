#include "engine/gpu/device_thread.h"

#include <sys/prctl.h>

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/gpu/device_task.h"
#include "os/thread.h"

namespace rr {
namespace {
constexpr int64_t kIdleNs = 1000000000;  // callers ring, so this only bounds what a lost wake-up would cost
// Neither peers nor streams ring. A look costs about 2 us: one every 50 us is 4 % of a core. Naps begin shorter, so
// that no look comes later than an eighth of what the operation has taken until then.
constexpr int64_t kLongestNapNs = 50000;
constexpr int64_t kShortestNapNs = 5000;
constexpr int64_t kNapsAWait = 8;
constexpr unsigned long kSlackNs = 1000;   // of the timer; the default of 50 us comes on top of every nap
constexpr uintptr_t kPerThreadStream = 2;  // CU_STREAM_PER_THREAD: one handle for a stream of each thread
}  // namespace

DeviceThread::DeviceThread(Context& context, const std::shared_ptr<Device>& device, PendingDeviceOperations& pending)
    : context_(context),
      pending_(pending),
      staging_(device),
      thread_(start_thread([this] { context_.run_guarded("GPU queue", [this] { run(); }); })) {}

void DeviceThread::stop() {
  stop_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
}

void DeviceThread::fail_all(const std::exception_ptr& error) {
  // Work streams may still be copying from and to the memory of these: whoever waits for the GPU keeps it until then.
  for (const DeviceOperationPtr& operation : active_) {
    if (operation->copied.has_value()) context_.gpu().keep(operation->request.keep, *operation->copied);
  }
  for (const DeviceOperationPtr& operation : pending_.fail_all(error)) staging_.retire(std::move(operation->staging));
  awaited_.clear();
  ready_.clear();
  active_.clear();
}

void DeviceThread::run() {
  ::prctl(PR_SET_TIMERSLACK, kSlackNs);
  const int64_t spin_ns = static_cast<int64_t>(context_.settings().spin_us * 1000);
  int64_t quiet_since = 0;
  while (!stop_.load(std::memory_order_acquire)) {
    bool moved = pending_.take_submitted(awaited_);
    moved |= start_reached();
    moved |= start_ready();
    moved |= advance();
    if (moved) {
      quiet_since = 0;
      continue;
    }
    const bool idle = is_idle();
    const bool crowded = context_.world().ranks_outnumber_cores();
    const int64_t now = now_ns();
    const bool is_first = quiet_since == 0;
    if (is_first) quiet_since = now;
    const int64_t quiet_ns = now - quiet_since;
    // Also when idle: who waits for each call makes the next within this time, and waking this thread takes longer.
    const bool polls = quiet_ns < spin_ns && !(idle && crowded);
    if ((is_first || !polls) && idle && context_.is_in_transit()) {
      context_.wait_loop().wake_engine();  // this thread has been at work alone
    }
    if (polls) {
      relax(crowded);
      continue;
    }
    const SleepScope scope(bell_);
    const uint32_t seen = bell_.seq.load(std::memory_order_seq_cst);
    if (pending_.has_submitted() || stop_.load()) continue;
    const int64_t nap_ns = std::min(std::max(quiet_ns / kNapsAWait, kShortestNapNs), kLongestNapNs);
    sleep_on(bell_, seen, idle ? kIdleNs : nap_ns);
  }
}

// Operations whose streams have come to them. A stream that has not come to one call has not come to a later one.
bool DeviceThread::start_reached() {
  bool moved = false;
  std::vector<Stream> behind;
  for (auto it = awaited_.begin(); it != awaited_.end();) {
    DeviceOperation& operation = **it;
    bool is_reached = true;
    std::exception_ptr error;
    for (size_t i = 0; i < operation.streams.size() && error == nullptr; ++i) {
      if (operation.after[i] == nullptr) continue;
      const Stream stream = operation.streams[i];
      if (std::find(behind.begin(), behind.end(), stream) != behind.end()) {
        is_reached = false;
        continue;
      }
      try {
        if (operation.after[i]->passed()) {
          operation.after[i].reset();
          continue;
        }
      } catch (const Error& broken) {
        context_.fail_groups(kind_of(broken), operation.group->here() + "] " + broken.what());
        error = std::current_exception();
      }
      is_reached = false;
      if (reinterpret_cast<uintptr_t>(stream) != kPerThreadStream) behind.push_back(stream);
    }
    if (error == nullptr) error = end_of(operation, is_reached);
    if (!is_reached && error == nullptr) {
      ++it;
      continue;
    }
    const DeviceOperationPtr taken = *it;
    it = awaited_.erase(it);
    moved = true;
    if (error != nullptr) {
      pending_.finish(operation, State::kFailed, error);
    } else {
      ready_.push_back(taken);
    }
  }
  return moved;
}

// What ends an operation that has not been announced: nothing of ours works on its memory yet. Null: nothing does. Its
// group fails if the stream takes longer than an operation may; a copy is nobody else's.
std::exception_ptr DeviceThread::end_of(const DeviceOperation& operation, bool is_reached) const {
  if (operation.is_cancelled.load()) return operation.error;
  const Group& group = *operation.group;
  const double limit_s = context_.timeout_s();
  if (!is_reached && limit_s > 0 && static_cast<double>(now_ns() - operation.submitted_ns) * 1e-9 > limit_s) {
    const std::string text = group.here() + ", " + operation.name + "] the stream of rank " +
                             std::to_string(group.ranks()[static_cast<size_t>(group.rank())]) +
                             " has not come to the operation within " + context_.timeout_text() +
                             ": what was put on the stream before is still running";
    if (operation.task == DeviceTask::kCopy) return std::make_exception_ptr(TimeoutError(text));
    record_failure(group.control(), FatalKind::kTimeout, text);
  }
  if (!has_failed(group.control())) return nullptr;
  try {
    throw_failure(group.control(), group.here() + ", " + operation.name + "]");
  } catch (const Error&) {
    return std::current_exception();
  }
}

// In the order of arrival, but one after the other where they have the same name: the group has a name once.
bool DeviceThread::start_ready() {
  bool moved = false;
  for (size_t i = 0; i < ready_.size();) {
    DeviceOperation& operation = *ready_[i];
    if (operation.is_cancelled.load()) {
      const DeviceOperationPtr keep = ready_[i];
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(i));
      pending_.finish(*keep, State::kFailed, keep->error);
      moved = true;
      continue;
    }
    if (operation.before != nullptr && is_done(*operation.before)) operation.before.reset();
    const bool is_busy = operation.before != nullptr || busy_.count({operation.group.get(), operation.name}) != 0;
    if (is_busy) {
      ++i;
      continue;
    }
    const DeviceOperationPtr started = ready_[i];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
    try {
      start(operation);
    } catch (const std::exception&) {
      pending_.finish(operation, State::kFailed, std::current_exception());
      continue;
    }
    busy_.insert({operation.group.get(), operation.name});
    active_.push_back(started);
  }
  return moved;
}

void DeviceThread::start(DeviceOperation& operation) {
  if (operation.task == DeviceTask::kCopy) return;
  if (operation.task != DeviceTask::kCollective) {
    const std::vector<TensorView>& tensors =
        operation.task == DeviceTask::kSend ? operation.request.srcs : operation.request.dsts;
    operation.staging = staging_.take(tensors[0].nbytes());
  }
  if (operation.task == DeviceTask::kSend) return;
  OperationPtr inner = operation.task == DeviceTask::kReceive ? begin_message(operation)
                                                              : operation.group->submit(operation.request, nullptr);
  pending_.set_inner(operation, std::move(inner));
}

bool DeviceThread::advance() {
  if (active_.empty()) return false;
  bool moved = context_.try_progress();
  for (size_t i = 0; i < active_.size();) {
    DeviceOperation& operation = *active_[i];
    std::exception_ptr error;
    std::optional<State> end;
    try {
      end = look_at(operation, error);
    } catch (const std::exception&) {
      end = State::kFailed;
      error = std::current_exception();
    }
    // A copy that is under way ends first: somebody has to see that it does.
    if (!end.has_value() && operation.is_cancelled.load() && !operation.copied.has_value()) {
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
    pending_.finish(operation, *end, error);
    moved = true;
  }
  return moved;
}

// An open bucket is closed at once when a thread waits.
std::optional<State> DeviceThread::look_at(DeviceOperation& operation, std::exception_ptr& error) {
  const bool copies_first = operation.task == DeviceTask::kSend || operation.task == DeviceTask::kCopy;
  if (operation.inner == nullptr && copies_first) {
    if (!copy_on(context_, operation)) return std::nullopt;
    if (operation.task == DeviceTask::kCopy) return State::kDone;
    operation.copied.reset();
    if (operation.is_cancelled.load()) return std::nullopt;
    OperationPtr inner = begin_message(operation);
    pending_.set_inner(operation, std::move(inner));
    return std::nullopt;
  }
  Operation& inner = *operation.inner;
  Group& group = *operation.group;
  if (operation.waiting.load() != 0) inner.wanted.store(true, std::memory_order_relaxed);
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
    if (!copy_on(context_, operation)) return std::nullopt;
  }
  return state;
}

}  // namespace rr
