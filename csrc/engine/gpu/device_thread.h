// The queue's own thread: it looks whether the streams have come to the operations, submits those that they have come
// to to their groups, and executes the log until they are done.
//
// Asleep while nothing is in flight; polls while something is.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/gpu/pending_device_operations.h"
#include "os/bell.h"

namespace rr {

class DeviceThread {
 public:
  DeviceThread(Context& context, const std::shared_ptr<Device>& device, PendingDeviceOperations& pending);
  ~DeviceThread() { stop(); }
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  void wake() { wake_all(bell_); }
  // Ends the thread. Does nothing twice.
  void stop();
  bool is_stopping() const { return stop_.load(); }
  // After stop(): fails what is pending.
  void fail_all(const std::exception_ptr& error);
  StagingPool& staging() { return staging_; }  // for its surplus

 private:
  void run();
  bool start_reached();
  std::exception_ptr end_of(const DeviceOperation& operation, bool is_reached) const;
  bool start_ready();
  bool advance();
  void start(DeviceOperation& operation);
  std::optional<State> look_at(DeviceOperation& operation, std::exception_ptr& error);
  bool is_idle() const { return awaited_.empty() && ready_.empty() && active_.empty(); }

  Context& context_;
  PendingDeviceOperations& pending_;
  Bell bell_ = {};

  // The thread's.
  StagingPool staging_;
  std::deque<DeviceOperationPtr> awaited_;               // whose streams are still to come, in the order of the calls
  std::vector<DeviceOperationPtr> ready_;                // reached, not started
  std::vector<DeviceOperationPtr> active_;               // submitted to their groups
  std::set<std::pair<const Group*, std::string>> busy_;  // names of active_

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace rr
