// The operations on GPU memory that have not ended, behind one lock: between the threads that call and the queue's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/gpu/device_operation.h"

namespace rr {

// Thread-safe.
class PendingDeviceOperations {
 public:
  explicit PendingDeviceOperations(Context& context) : context_(context) {}
  PendingDeviceOperations(const PendingDeviceOperations&) = delete;
  PendingDeviceOperations& operator=(const PendingDeviceOperations&) = delete;

  // --- callers. The first three throw after stop(), if the job has been shut down.
  // name: the caller's, or null. Throws InvalidArgumentError while an operation of that name is pending that no thread
  // waits for.
  void add_collective(const DeviceOperationPtr& operation, const std::string* name);
  void add_message(const DeviceOperationPtr& operation);  // it has its name
  void add_copy(const DeviceOperationPtr& operation);
  OperationPtr inner(const DeviceOperation& operation) const;
  std::exception_ptr error_of(const DeviceOperation& operation) const;  // null unless it has failed
  bool has(int group_id, const std::string& name) const;
  bool has_waiting(const Group* group) const;  // of this group, or any
  // Whether the group knows of all its collectives that have been added.
  bool are_announced(const Group& group) const;
  // Those of a group that all members are about to remove: the queue's thread ends them.
  void cancel(const Group& group);
  // False when it has been called before.
  bool stop();
  // What has not ended fails, and is returned. The queue's thread has ended.
  std::vector<DeviceOperationPtr> fail_all(const std::exception_ptr& error);

  // --- the queue's thread
  bool has_submitted() const { return has_submitted_.load(); }
  // Appends what has been added since. True if that is anything.
  bool take_submitted(std::deque<DeviceOperationPtr>& taken);
  void set_inner(DeviceOperation& operation, OperationPtr inner);
  void finish(DeviceOperation& operation, State state, std::exception_ptr error);

 private:
  std::string automatic_name(const Group& group, Kind kind);
  void enqueue_locked(const DeviceOperationPtr& operation);
  DeviceOperationPtr finish_locked(DeviceOperation& operation, State state, std::exception_ptr error);

  Context& context_;
  mutable std::mutex mutex_;
  std::unordered_map<DeviceOperation*, DeviceOperationPtr> all_;             // not finished
  std::map<std::pair<const Group*, std::string>, DeviceOperation*> latest_;  // not finished, by name
  uint64_t copies_ = 0;
  std::map<std::pair<int, Kind>, uint64_t> unnamed_;  // submitted, by group
  std::vector<DeviceOperationPtr> submitted_;         // not yet seen by the queue's thread
  bool is_stopped_ = false;
  std::atomic<bool> has_submitted_{false};
};

}  // namespace rr
