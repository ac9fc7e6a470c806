// An operation on GPU memory, from its call until nobody holds its handle any more, and the error that nobody asked
// for.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/gpu/staging_pool.h"
#include "engine/group/group.h"

namespace rr {

// "device.allreduce.17" and the like are what the queue calls unnamed operations.
inline constexpr const char* kAutomaticPrefix = "device.";
bool is_automatic_name(const std::string& name);

// What there is to do once the streams have come. Messages go through pinned memory of the host.
enum class DeviceTask : uint8_t { kCollective, kSend, kReceive, kCopy };

// The first error that nobody has heard of. Thread-safe.
class Unheard {
 public:
  explicit Unheard(Log log) : log_(log) {}
  void keep(std::exception_ptr error);
  void raise();  // it, if there is one, once

 private:
  Log log_;
  std::mutex mutex_;
  std::exception_ptr first_;
};

struct DeviceOperation : std::enable_shared_from_this<DeviceOperation> {
  explicit DeviceOperation(std::shared_ptr<Unheard> its_unheard) : unheard(std::move(its_unheard)) {}
  ~DeviceOperation();
  DeviceOperation(const DeviceOperation&) = delete;
  DeviceOperation& operator=(const DeviceOperation&) = delete;

  DeviceTask task = DeviceTask::kCollective;
  Request request;
  int peer = -1;  // of a message
  int tag = 0;
  std::string name;
  int group_id = 0;
  std::shared_ptr<Group> group;             // the world's is not owned: the context has it
  std::vector<Stream> streams;              // whose work it comes after
  std::shared_ptr<DeviceOperation> before;  // of the same name: this one starts when that one is done
  std::shared_ptr<Unheard> unheard;

  int64_t submitted_ns = now_ns();

  // The queue's thread.
  std::vector<std::unique_ptr<StreamPoint>> after;  // one a stream; those that have passed are null
  Staging staging;                                  // of a message
  std::optional<Mark> copied;                       // of its copy, while that is under way

  std::atomic<int> waiting{0};            // threads that wait for it
  std::atomic<bool> was_asked{false};     // somebody has got to know its error
  std::atomic<bool> is_cancelled{false};  // its group is going
  std::atomic<State> state{State::kPending};

  // The mutex of PendingDeviceOperations.
  OperationPtr inner;  // of the group, once submitted
  std::exception_ptr error;
  bool error_is_fatal = false;
};

using DeviceOperationPtr = std::shared_ptr<DeviceOperation>;

inline bool is_done(const DeviceOperation& operation) {
  return operation.state.load(std::memory_order_acquire) != State::kPending;
}

}  // namespace rr
