#include "engine/gpu/pending_device_operations.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "engine/context.h"

namespace rr {
namespace {

std::exception_ptr removed(const DeviceOperation& operation) {
  return std::make_exception_ptr(ShutdownError("the process set of " + list_of(operation.group->ranks()) +
                                               " was removed while '" + operation.name + "' was pending on the GPU"));
}

}  // namespace

// Requests come when streams get there, in any order, so an unnamed operation gets a name: the number of the call.
// It cannot be a user's (python/calls.cc refuses such names).
std::string PendingDeviceOperations::automatic_name(const Group& group, Kind kind) {
  return kAutomaticPrefix + std::string(rr::name(kind)) + "." + std::to_string(unnamed_[{group.id(), kind}]++);
}

void PendingDeviceOperations::add_collective(const DeviceOperationPtr& operation, const std::string* name) {
  const std::lock_guard lock(mutex_);
  if (name != nullptr) {
    const auto latest = latest_.find({operation->group.get(), *name});
    if (latest != latest_.end()) {
      if (latest->second->waiting.load() == 0) {
        throw InvalidArgumentError(
            "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is "
            "currently being processed.  If you want to request another tensor, use a different tensor name. ('" +
            *name + "' on the GPU: synchronize its handle first)");
      }
      operation->before = latest->second->shared_from_this();
    }
    operation->name = *name;
  } else {
    operation->name = automatic_name(*operation->group, operation->request.kind);
  }
  operation->request.name = &operation->name;
  enqueue_locked(operation);
}

void PendingDeviceOperations::add_message(const DeviceOperationPtr& operation) {
  const std::lock_guard lock(mutex_);
  const auto latest = latest_.find({operation->group.get(), operation->name});
  if (latest != latest_.end()) operation->before = latest->second->shared_from_this();
  enqueue_locked(operation);
}

void PendingDeviceOperations::add_copy(const DeviceOperationPtr& operation) {
  const std::lock_guard lock(mutex_);
  operation->name = "copy " + std::to_string(copies_++);
  enqueue_locked(operation);
}

void PendingDeviceOperations::enqueue_locked(const DeviceOperationPtr& operation) {
  if (is_stopped_) context_.throw_if_shut_down();
  all_[operation.get()] = operation;
  latest_[{operation->group.get(), operation->name}] = operation.get();
  submitted_.push_back(operation);
  has_submitted_.store(true);
}

std::exception_ptr PendingDeviceOperations::error_of(const DeviceOperation& operation) const {
  const std::lock_guard lock(mutex_);
  if (operation.state.load(std::memory_order_acquire) == State::kFailed) return operation.error;
  return nullptr;
}

OperationPtr PendingDeviceOperations::inner(const DeviceOperation& operation) const {
  const std::lock_guard lock(mutex_);
  return operation.inner;
}

bool PendingDeviceOperations::has(int group_id, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& item) { return item.first->group_id == group_id && item.first->name == name; });
}

bool PendingDeviceOperations::has_waiting(const Group* group) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(all_.begin(), all_.end(), [&](const auto& item) {
    if (group != nullptr && item.first->group.get() != group) return false;
    return item.first->state.load() == State::kPending && item.first->waiting.load() != 0;
  });
}

bool PendingDeviceOperations::are_announced(const Group& group) const {
  const std::lock_guard lock(mutex_);
  return std::none_of(all_.begin(), all_.end(), [&](const auto& item) {
    const DeviceOperation& operation = *item.first;
    const bool counts = operation.group.get() == &group && operation.task == DeviceTask::kCollective;
    return counts && operation.inner == nullptr && !is_done(operation);
  });
}

// What has been reached is the thread's to finish.
void PendingDeviceOperations::cancel(const Group& group) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, operation] : all_) {
    if (operation->group.get() != &group) continue;
    operation->error = removed(*operation);
    operation->is_cancelled.store(true);
  }
}

bool PendingDeviceOperations::stop() {
  const std::lock_guard lock(mutex_);
  return !std::exchange(is_stopped_, true);
}

std::vector<DeviceOperationPtr> PendingDeviceOperations::fail_all(const std::exception_ptr& error) {
  std::vector<DeviceOperationPtr> left;  // finishing one takes it out of all_
  const std::lock_guard lock(mutex_);
  for (const auto& [key, operation] : all_) left.push_back(operation);
  for (const DeviceOperationPtr& operation : left) finish_locked(*operation, State::kFailed, error);
  submitted_.clear();
  return left;
}

bool PendingDeviceOperations::take_submitted(std::deque<DeviceOperationPtr>& taken) {
  if (!has_submitted_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  has_submitted_.store(false);
  taken.insert(taken.end(), submitted_.begin(), submitted_.end());
  submitted_.clear();
  return true;
}

void PendingDeviceOperations::set_inner(DeviceOperation& operation, OperationPtr inner) {
  const std::lock_guard lock(mutex_);
  operation.inner = std::move(inner);
}

void PendingDeviceOperations::finish(DeviceOperation& operation, State state, std::exception_ptr error) {
  DeviceOperationPtr ended;  // outlives the lock
  {
    const std::lock_guard lock(mutex_);
    ended = finish_locked(operation, state, std::move(error));
  }
  context_.wait_loop().wake_callers();
}

// mutex_ held. What the queue had of the operation.
DeviceOperationPtr PendingDeviceOperations::finish_locked(DeviceOperation& operation, State state,
                                                          std::exception_ptr error) {
  DeviceOperationPtr ended = operation.shared_from_this();
  operation.error = std::move(error);
  if (operation.error != nullptr) {
    operation.error_is_fatal = has_failed(operation.group->control()) || context_.is_shut_down() || is_stopped_;
  }
  operation.after.clear();
  operation.request.keep.reset();
  const auto latest = latest_.find({operation.group.get(), operation.name});
  if (latest != latest_.end() && latest->second == &operation) latest_.erase(latest);
  all_.erase(&operation);
  operation.state.store(state, std::memory_order_release);
  return ended;
}

}  // namespace rr
