// DeviceQueue: what the callers' threads do. device_thread.cc has the queue's own.
#include "engine/gpu/device_queue.h"

#include <algorithm>
#include <chrono>

#include "base/errors.h"
#include "engine/context.h"
#include "os/thread.h"

namespace rr {
namespace {

// Results that nobody asked for stay until somebody drops one, or until there are so many bytes of them.
constexpr size_t kMostReleasedNbytes = size_t{256} << 20;
constexpr double kWithdrawS = 10;  // what all ranks are in when its call is interrupted has so long to end

// A thread that waits, while this exists.
class Waiting {
 public:
  explicit Waiting(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Waiting() { --count_; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::atomic<int>& count_;
};

std::exception_ptr removed(const DeviceOperation& operation) {
  return std::make_exception_ptr(ShutdownError("the process set of " + list_of(operation.group->ranks()) +
                                               " was removed while '" + operation.name + "' was pending on the GPU"));
}

}  // namespace

bool is_automatic_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  const size_t start = std::char_traits<char>::length(kAutomaticPrefix);
  if (name.rfind(kAutomaticPrefix, 0) != 0 || dot < start || dot + 1 == name.size()) return false;
  return name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
}

void Unheard::keep(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    log_.warning(std::string("an operation on GPU memory has failed, and nobody asked for its outcome: ") +
                 failure.what());
  }
  const std::lock_guard lock(mutex_);
  if (first_ == nullptr) first_ = std::move(error);
}

void Unheard::raise() {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    std::swap(error, first_);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

// Fatal errors come up anyway.
DeviceOperation::~DeviceOperation() {
  if (state.load() == State::kFailed && error != nullptr && !error_is_fatal && !was_asked.load()) unheard->keep(error);
}

DeviceQueue::DeviceQueue(Context& context, std::shared_ptr<Device> device)
    : context_(context),
      device_(std::move(device)),
      unheard_(std::make_shared<Unheard>(context.log())),
      staging_(device_),
      thread_(start_thread([this] { context_.run_guarded("GPU queue", [this] { run(); }); })) {}

DeviceQueue::~DeviceQueue() { stop(); }

// Requests come when streams get there, in any order, so an unnamed operation gets a name: the number of the call.
// It cannot be a user's (python/calls.cc refuses such names).
std::string DeviceQueue::automatic_name(const Group& group, Kind kind) {
  return kAutomaticPrefix + std::string(rr::name(kind)) + "." + std::to_string(unnamed_[{group.id(), kind}]++);
}

DeviceOperationPtr DeviceQueue::make(Group& group, std::vector<Stream> streams) {
  context_.throw_if_shut_down();
  group.throw_if_failed();
  unheard_->raise();
  if (device_->released_nbytes() > kMostReleasedNbytes) device_->free_released();
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  if (streams.empty()) throw InvalidArgumentError("an operation on GPU memory comes after the work of a stream");
  auto operation = std::make_shared<DeviceOperation>(unheard_);
  operation->group = context_.shared(group);
  operation->group_id = group.id();
  for (Stream stream : streams) {
    if (!device_->is_capturing(stream)) continue;
    throw UnavailableError(
        "operations on GPU memory cannot be captured in a CUDA graph: this rank's host has a part in each; call them "
        "outside of the capture");
  }
  for (Stream stream : streams) operation->after.push_back(device_->record(stream));
  operation->streams = std::move(streams);
  return operation;
}

DeviceOperationPtr DeviceQueue::submit(Group& group, const Request& request, std::vector<Stream> streams) {
  DeviceOperationPtr operation = make(group, std::move(streams));
  group.check_request(request);
  operation->request = request;
  operation->request.is_from_queue = true;
  group.record_caller();
  {
    const std::lock_guard lock(mutex_);
    if (request.name != nullptr) {
      const auto latest = latest_.find({&group, *request.name});
      if (latest != latest_.end()) {
        if (latest->second->waiting.load() == 0) {
          throw InvalidArgumentError(
              "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is "
              "currently being processed.  If you want to request another tensor, use a different tensor name. ('" +
              *request.name + "' on the GPU: synchronize its handle first)");
        }
        operation->before = latest->second->shared_from_this();
      }
      operation->name = *request.name;
    } else {
      operation->name = automatic_name(group, request.kind);
    }
    operation->request.name = &operation->name;
    enqueue_locked(operation);
  }
  wake();
  return operation;
}

void DeviceQueue::enqueue_locked(const DeviceOperationPtr& operation) {
  if (is_stopped_) context_.throw_if_shut_down();
  all_[operation.get()] = operation;
  latest_[{operation->group.get(), operation->name}] = operation.get();
  submitted_.push_back(operation);
  has_submitted_.store(true);
}

void DeviceQueue::rethrow(DeviceOperation& operation) {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (operation.state.load(std::memory_order_acquire) == State::kFailed) error = operation.error;
  }
  if (error == nullptr) return;
  operation.was_asked.store(true);
  std::rethrow_exception(error);
}

bool DeviceQueue::done(const DeviceOperation& operation) const {
  return operation.state.load(std::memory_order_acquire) != State::kPending;
}

void DeviceQueue::await_announced(Group& group, Interrupt interrupt) {
  wake();
  const auto are_announced = [&] {
    group.throw_if_failed();
    context_.throw_if_shut_down();
    const std::lock_guard lock(mutex_);
    return std::none_of(all_.begin(), all_.end(), [&](const auto& item) {
      const DeviceOperation& operation = *item.first;
      const bool counts = operation.group.get() == &group && operation.task == DeviceTask::kCollective;
      return counts && operation.inner == nullptr && !done(operation);
    });
  };
  context_.wait_loop().wait_until(
      are_announced, [&] { return group.has_work(); }, Deadline::never(), interrupt, false, [] {});
}

bool DeviceQueue::wait(DeviceOperation& operation, double timeout_s, Interrupt interrupt) {
  const Waiting waiting(operation.waiting);
  wake();
  Group& group = *operation.group;
  const bool in_time =
      context_.wait_loop().wait_until([&] { return done(operation); }, [&] { return group.has_work(); },
                                      timeout_s < 0 ? Deadline::never() : Deadline::after_s(std::max(timeout_s, 1e-9)),
                                      interrupt, group.ranks_outnumber_cores(), [] {});
  if (in_time) rethrow(operation);
  return in_time;
}

void DeviceQueue::withdraw(DeviceOperation& operation, Interrupt interrupt) {
  Group& group = *operation.group;
  const OperationPtr submitted = inner(operation);
  const bool is_message = operation.task == DeviceTask::kSend || operation.task == DeviceTask::kReceive;
  const bool is_finishable = submitted != nullptr && !is_message && group.is_under_way(*submitted);
  try {
    if (is_finishable || operation.task == DeviceTask::kCopy) wait(operation, kWithdrawS, interrupt);
  } catch (...) {  // its own error, or that a second signal has come
  }
  if (done(operation)) return;
  group.fail_as_interrupted(group.here() + "] '" + operation.name + "' on the GPU",
                            "what its streams may be told of cannot be withdrawn");
  try {
    wait(operation, kWithdrawS, nullptr);
  } catch (...) {  // the failure
  }
}

OperationPtr DeviceQueue::inner(const DeviceOperation& operation) const {
  const std::lock_guard lock(mutex_);
  return operation.inner;
}

bool DeviceQueue::has(int group_id, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& item) { return item.first->group_id == group_id && item.first->name == name; });
}

bool DeviceQueue::has_waiting(const Group* group) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(all_.begin(), all_.end(), [&](const auto& item) {
    if (group != nullptr && item.first->group.get() != group) return false;
    return item.first->state.load() == State::kPending && item.first->waiting.load() != 0;
  });
}

void DeviceQueue::drain(double timeout_s, const Group* group) {
  const Deadline deadline = Deadline::after_s(timeout_s);
  while (!stop_.load() && has_waiting(group) && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// mutex_ held. What has been reached is the thread's to finish.
void DeviceQueue::cancel(DeviceOperation& operation, std::exception_ptr error) {
  operation.error = std::move(error);
  operation.is_cancelled.store(true);
}

void DeviceQueue::forget(const Group& group) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, operation] : all_) {
      if (operation->group.get() == &group) cancel(*operation, removed(*operation));
    }
  }
  wake();
}

void DeviceQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    is_stopped_ = true;
  }
  stop_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
  std::exception_ptr error;
  try {
    context_.throw_if_shut_down();
  } catch (...) {
    error = std::current_exception();
  }
  // Work streams may still be copying from and to the memory of these: whoever waits for the GPU keeps it until then.
  for (const DeviceOperationPtr& operation : active_) {
    if (operation->copied.has_value()) context_.gpu().keep(operation->request.keep, *operation->copied);
  }
  {
    const std::lock_guard lock(mutex_);
    const auto left = all_;  // finishing one takes it out
    for (const auto& [key, operation] : left) {
      finish_locked(*operation, State::kFailed, error);
      staging_.retire(std::move(operation->staging));
    }
    submitted_.clear();
    awaited_.clear();
    ready_.clear();
    active_.clear();
  }
  context_.wait_loop().wake_callers();
}

}  // namespace rr
