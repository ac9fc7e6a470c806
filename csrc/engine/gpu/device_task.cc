// DeviceQueue: messages and copies, which the queue's thread has the work streams do itself.

#include "base/errors.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"

namespace rr {

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
  {
    const std::lock_guard lock(mutex_);
    const auto latest = latest_.find({&group, operation->name});
    if (latest != latest_.end()) operation->before = latest->second->shared_from_this();
    enqueue_locked(operation);
  }
  wake();
  return operation;
}

DeviceOperationPtr DeviceQueue::copy(const TensorView& src, const TensorView& dst, std::shared_ptr<void> keep,
                                     std::vector<Stream> streams) {
  DeviceOperationPtr operation = make(context_.world(), std::move(streams));
  operation->task = DeviceTask::kCopy;
  operation->request.srcs.push_back(src);
  operation->request.dsts.push_back(dst);
  operation->request.keep = std::move(keep);
  {
    const std::lock_guard lock(mutex_);
    operation->name = "copy " + std::to_string(copies_++);
    enqueue_locked(operation);
  }
  wake();
  return operation;
}

// Issues the copy that is wanted next, or looks after it; true when it is done. Work streams are the executor's.
bool DeviceQueue::copy_on(DeviceOperation& operation) {
  bool is_done = false;
  context_.gpu().with_work_streams([&](Device& device) {
    if (operation.copied.has_value()) {
      is_done = device.passed(*operation.copied);
      return;
    }
    const bool is_copy = operation.task == DeviceTask::kCopy;
    const bool is_send = operation.task == DeviceTask::kSend;
    const TensorView& tensor = is_send ? operation.request.srcs[0] : operation.request.dsts[0];
    std::byte* const staging = operation.staging.memory.get();
    const WorkStream work_stream = is_copy   ? WorkStream::kCompute
                                   : is_send ? WorkStream::kToHost
                                             : WorkStream::kToDevice;
    const std::byte* const src = is_copy ? operation.request.srcs[0].data : is_send ? tensor.data : staging;
    if (tensor.nbytes() != 0) device.copy(work_stream, is_send ? staging : tensor.data, src, tensor.nbytes());
    operation.copied = device.mark(work_stream);
  });
  return is_done;
}

OperationPtr DeviceQueue::begin_message(DeviceOperation& operation) {
  const bool is_send = operation.task == DeviceTask::kSend;
  TensorView view = is_send ? operation.request.srcs[0] : operation.request.dsts[0];
  view.data = operation.staging.memory.get();
  view.place = Place::kHost;
  return is_send ? operation.group->send(view, operation.peer, operation.tag, nullptr)
                 : operation.group->receive(view, operation.peer, operation.tag, nullptr);
}

}  // namespace rr
