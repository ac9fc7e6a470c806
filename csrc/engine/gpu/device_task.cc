#include "engine/gpu/device_task.h"

#include "engine/context.h"

namespace rr {

bool copy_on(Context& context, DeviceOperation& operation) {
  bool is_done = false;
  context.gpu().with_work_streams([&](Device& device) {
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

OperationPtr begin_message(DeviceOperation& operation) {
  const bool is_send = operation.task == DeviceTask::kSend;
  TensorView view = is_send ? operation.request.srcs[0] : operation.request.dsts[0];
  view.data = operation.staging.memory.get();
  view.place = Place::kHost;
  return is_send ? operation.group->send(view, operation.peer, operation.tag, nullptr)
                 : operation.group->receive(view, operation.peer, operation.tag, nullptr);
}

}  // namespace rr
