// Operations on GPU memory: from a stream to the group, and back to the threads that wait for the result.
//
// submit() records what has been put on the caller's streams and returns. Once the streams have done that, the queue's
// thread submits the operation to the group, where it is a named one like any other, and executes the log until it is
// done. wait() blocks the calling thread until then, so whatever it puts on any stream afterwards sees the result. No
// stream ever waits for the host: on an H200 (driver 580, 2026-11) a stream that did so kept every other call of the
// process waiting in the driver, those of the queue's thread too.
//
// The error is raised by the next wait of the operation. If nobody asks: a fatal one is raised by the group's next call
// anyway, another is logged, and raised by this rank's next call on GPU memory: what went on with a result that there
// is not must not go on for long.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/gpu/device_operation.h"
#include "engine/gpu/device_thread.h"
#include "engine/gpu/pending_device_operations.h"
#include "engine/group/group.h"

namespace rr {

class DeviceQueue {
 public:
  DeviceQueue(Context& context, std::shared_ptr<Device> device);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // streams: those whose work the operation comes after, at least one. Raises what can be known without the other
  // ranks; UnavailableError while a stream is being captured in a graph.
  DeviceOperationPtr submit(Group& group, const Request& request, std::vector<Stream> streams);
  // Messages: as Group's. Between two ranks they go in the order of the calls, whatever the streams.
  DeviceOperationPtr message(Group& group, DeviceTask task, const TensorView& tensor, int peer, int tag,
                             std::shared_ptr<void> keep, std::vector<Stream> streams);
  DeviceOperationPtr copy(const TensorView& src, const TensorView& dst, std::shared_ptr<void> keep,
                          std::vector<Stream> streams);
  // True once it is done or has failed.
  bool done(const DeviceOperation& operation) const { return is_done(operation); }
  // Blocks until the group's operations that have been submitted so far are announced to the other ranks.
  void await_announced(Group& group, Interrupt interrupt);
  // Blocks this thread. False when timeout_s (< 0: none) ran out first.
  bool wait(DeviceOperation& operation, double timeout_s, Interrupt interrupt);
  // For a synchronous call that an exception has ended: as Group::withdraw(), but that what not all ranks are in always
  // fails the group, because work streams may be told of it at any moment.
  void withdraw(DeviceOperation& operation, Interrupt interrupt);
  // For its counts; null before it is submitted.
  OperationPtr inner(const DeviceOperation& operation) const { return pending_.inner(operation); }
  // Whether an operation of that name is on its way to the group of this id, or in it.
  bool has(int group_id, const std::string& name) const { return pending_.has(group_id, name); }

  StagingPool& staging() { return thread_.staging(); }  // for its surplus

  // Gives operations that a thread waits for so long to finish: those of one group, or all.
  void drain(double timeout_s, const Group* group = nullptr);
  // Ends the thread; what is pending fails with ShutdownError.
  void stop();
  // What is pending in a group that all members are about to remove fails.
  void forget(const Group& group);

 private:
  void rethrow(DeviceOperation& operation);
  DeviceOperationPtr make(Group& group, std::vector<Stream> streams);

  Context& context_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Unheard> unheard_;
  PendingDeviceOperations pending_;
  DeviceThread thread_;
};

}  // namespace rr
