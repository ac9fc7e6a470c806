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

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/gpu/staging_pool.h"
#include "engine/group/group.h"
#include "os/bell.h"

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

  // The queue's mutex.
  OperationPtr inner;  // of the group, once submitted
  std::exception_ptr error;
  bool error_is_fatal = false;
};

using DeviceOperationPtr = std::shared_ptr<DeviceOperation>;

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
  bool done(const DeviceOperation& operation) const;
  // Blocks until the group's operations that have been submitted so far are announced to the other ranks.
  void await_announced(Group& group, Interrupt interrupt);
  // Blocks this thread. False when timeout_s (< 0: none) ran out first.
  bool wait(DeviceOperation& operation, double timeout_s, Interrupt interrupt);
  // For a synchronous call that an exception has ended: as Group::withdraw(), but that what not all ranks are in always
  // fails the group, because work streams may be told of it at any moment.
  void withdraw(DeviceOperation& operation, Interrupt interrupt);
  OperationPtr inner(const DeviceOperation& operation) const;  // for its counts; null before it is submitted
  // Whether an operation of that name is on its way to the group of this id, or in it.
  bool has(int group_id, const std::string& name) const;

  StagingPool& staging() { return staging_; }  // for its surplus

  // Gives operations that a thread waits for so long to finish: those of one group, or all.
  void drain(double timeout_s, const Group* group = nullptr);
  // Ends the thread; what is pending fails with ShutdownError.
  void stop();
  // What is pending in a group that all members are about to remove fails.
  void forget(const Group& group);

 private:
  void run();
  bool take_submitted();
  bool start_reached();
  std::exception_ptr end_of(const DeviceOperation& operation, bool is_reached) const;
  bool start_ready();
  bool advance();
  void start(DeviceOperation& operation);
  std::optional<State> look_at(DeviceOperation& operation, std::exception_ptr& error);
  // device_task.cc
  bool copy_on(DeviceOperation& operation);
  OperationPtr begin_message(DeviceOperation& operation);
  bool has_waiting(const Group* group) const;
  void cancel(DeviceOperation& operation, std::exception_ptr error);
  void finish(DeviceOperation& operation, State state, std::exception_ptr error);
  DeviceOperationPtr finish_locked(DeviceOperation& operation, State state, std::exception_ptr error);
  void rethrow(DeviceOperation& operation);
  std::string automatic_name(const Group& group, Kind kind);
  DeviceOperationPtr make(Group& group, std::vector<Stream> streams);
  void enqueue_locked(const DeviceOperationPtr& operation);
  bool is_idle() const { return awaited_.empty() && ready_.empty() && active_.empty(); }
  void wake() { wake_all(bell_); }

  Context& context_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Unheard> unheard_;

  mutable std::mutex mutex_;
  std::unordered_map<DeviceOperation*, DeviceOperationPtr> all_;             // not finished
  std::map<std::pair<const Group*, std::string>, DeviceOperation*> latest_;  // not finished, by name
  uint64_t copies_ = 0;
  std::map<std::pair<int, Kind>, uint64_t> unnamed_;  // submitted, by group
  std::vector<DeviceOperationPtr> submitted_;         // not yet seen by the queue's thread
  bool is_stopped_ = false;
  Bell bell_ = {};
  std::atomic<bool> has_submitted_{false};

  // The queue's thread.
  StagingPool staging_;
  std::deque<DeviceOperationPtr> awaited_;               // whose streams are still to come, in the order of the calls
  std::vector<DeviceOperationPtr> ready_;                // reached, not started
  std::vector<DeviceOperationPtr> active_;               // submitted to their groups
  std::set<std::pair<const Group*, std::string>> busy_;  // names of active_

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace rr
