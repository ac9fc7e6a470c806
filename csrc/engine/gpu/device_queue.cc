#include "engine/gpu/device_queue.h"

#include <algorithm>

#include "base/errors.h"
#include "base/poll.h"
#include "engine/context.h"

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

}  // namespace

DeviceQueue::DeviceQueue(Context& context, std::shared_ptr<Device> device)
    : context_(context),
      device_(std::move(device)),
      unheard_(std::make_shared<Unheard>(context.log())),
      pending_(context),
      thread_(context, device_, pending_) {}

DeviceQueue::~DeviceQueue() { stop(); }

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
  pending_.add_collective(operation, request.name);
  thread_.wake();
  return operation;
}

DeviceOperationPtr DeviceQueue::message(Group& group, DeviceTask task, const TensorView& tensor, int peer, int tag,
                                        std::shared_ptr<void> keep, std::vector<Stream> streams) {
  DeviceOperationPtr operation = make(group, std::move(streams));
  group.check_peer(peer, task == DeviceTask::kSend);
  operation->task = task;
  operation->peer = peer;
  operation->tag = tag;
  (task == DeviceTask::kSend ? operation->request.srcs : operation->request.dsts).push_back(tensor);
  operation->request.keep = std::move(keep);
  // Whoever has this name waits for the one before it: messages between two ranks arrive in the order sent, whatever
  // their tags. The group never hears of the name.
  operation->name = std::string(task == DeviceTask::kSend ? "send to" : "recv from") + " rank " +
                    (peer == kAnyPeer ? "any" : std::to_string(group.ranks()[static_cast<size_t>(peer)]));
  pending_.add_message(operation);
  thread_.wake();
  return operation;
}

DeviceOperationPtr DeviceQueue::copy(const TensorView& src, const TensorView& dst, std::shared_ptr<void> keep,
                                     std::vector<Stream> streams) {
  DeviceOperationPtr operation = make(context_.world(), std::move(streams));
  operation->task = DeviceTask::kCopy;
  operation->request.srcs.push_back(src);
  operation->request.dsts.push_back(dst);
  operation->request.keep = std::move(keep);
  pending_.add_copy(operation);
  thread_.wake();
  return operation;
}

void DeviceQueue::rethrow(DeviceOperation& operation) {
  const std::exception_ptr error = pending_.error_of(operation);
  if (error == nullptr) return;
  operation.was_asked.store(true);
  std::rethrow_exception(error);
}

void DeviceQueue::await_announced(Group& group, Interrupt interrupt) {
  thread_.wake();
  const auto are_announced = [&] {
    group.throw_if_failed();
    context_.throw_if_shut_down();
    return pending_.are_announced(group);
  };
  context_.wait_loop().wait_until(
      are_announced, [&] { return group.has_work(); }, Deadline::never(), interrupt, false, [] {});
}

bool DeviceQueue::wait(DeviceOperation& operation, double timeout_s, Interrupt interrupt) {
  const Waiting waiting(operation.waiting);
  thread_.wake();
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

void DeviceQueue::drain(double timeout_s, const Group* group) {
  poll_until([&] { return thread_.is_stopping() || !pending_.has_waiting(group); }, Deadline::after_s(timeout_s));
}

void DeviceQueue::forget(const Group& group) {
  pending_.cancel(group);
  thread_.wake();
}

void DeviceQueue::stop() {
  if (!pending_.stop()) return;
  thread_.stop();
  std::exception_ptr error;
  try {
    context_.throw_if_shut_down();
  } catch (...) {
    error = std::current_exception();
  }
  thread_.fail_all(error);
  context_.wait_loop().wake_callers();
}

}  // namespace rr
