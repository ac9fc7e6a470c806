// One rank's membership of one job: its groups, the engine thread, the watch over its peers, and how its threads wait.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/stats.h"
#include "engine/group.h"
#include "os/liveness.h"
#include "os/segments.h"
#include "transport/network.h"

namespace rr {

class DeviceQueue;

class Context final : public DeviceResources {
 public:
  // Chooses the sizes that depend on the machine, before the first operation: writes Header::tuned on all ranks.
  using Tune = void (*)(Context&);

  // Collective. fd: the world's control segment on this host. pidfds[r] watches rank r, -1 = not watched. segments may
  // be shared with other contexts of the process. timeout_s: instead of the knob; < 0 = the knob. network: the other
  // hosts, if there are any.
  Context(int fd, int rank, int size, const std::vector<int>& pidfds, std::string hostname,
          std::shared_ptr<SegmentRegistry> segments, Interrupt interrupt, Tune tune, double timeout_s = -1,
          Network network = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Group& world() { return *world_; }
  // Collective over ranks. Whoever has handles of its operations shares the group, and keeps this context too.
  // id: never used before in this context, the same on all ranks; the links to other hosts go by it.
  std::shared_ptr<Group> add_group(int fd, const std::vector<int>& ranks, int id, Interrupt interrupt);
  void remove_group(Group* group, Interrupt interrupt);  // collective; not the world
  // why: what the ranks that miss this one are told, in place of that it has left. Empty: nothing.
  void shutdown(const std::string& why = "");
  // Ends all groups of this rank; the other members are told why.
  void fail_groups(FatalKind kind, const std::string& text);
  // The same for a process that an exception ends at once, with all that is under way.
  void fail_as_lost(const std::string& why);
  void forget_after_fork();  // in a forked child, which may do nothing else with it: closes descriptors
  bool is_shut_down() const { return shut_down_.load(std::memory_order_acquire); }

  int rank() const { return rank_; }
  const Settings& settings() const { return settings_; }
  double timeout_s() const { return timeout_s_.load(std::memory_order_relaxed); }        // of operations; 0 = never
  bool has_own_timeout() const { return own_timeout_.load(std::memory_order_relaxed); }  // not the knob's
  void set_timeout_s(double timeout_s) {
    own_timeout_.store(true, std::memory_order_relaxed);
    timeout_s_.store(timeout_s, std::memory_order_relaxed);
  }
  const Log& log() const { return log_; }
  const Kernels& kernels() const { return kernels_; }
  const SegmentRegistry& segments() const { return *segments_; }
  Stats& stats() { return stats_; }
  Interrupt interrupt() const { return interrupt_; }
  const std::string& hostname() const { return hostname_; }
  int host_of(int world_rank) const {
    return network_.host_of.empty() ? 0 : network_.host_of[static_cast<size_t>(world_rank)];
  }
  const std::string& network_name() const { return network_.name; }
  std::unique_ptr<Link> remote_link(int world_rank, int channel);
  // The GPU of this rank, from the first operation on device memory on; null before. Set once.
  Device* device() const override { return device_.load(std::memory_order_acquire); }
  void use_device(std::shared_ptr<Device> device);
  const std::shared_ptr<DeviceMessages>& device_messages() const override { return network_.device_messages; }
  std::shared_ptr<const NcclLibrary> nccl() override;
  // For operations on its memory. Throws InvalidArgumentError before use_device().
  DeviceQueue& device_queue() const;
  // Calls use(the GPU) unless another thread is at work; then it returns false. Before use_device() not to be called.
  bool with_work_streams(const std::function<void(Device&)>& use);
  // To keep with what may outlast remove_group(). The world stays the context's.
  std::shared_ptr<Group> shared(Group& group);
  std::shared_ptr<Device> shared_device() const override { return device() != nullptr ? device_owner_ : nullptr; }
  // Executor lock held.
  const std::shared_ptr<DeviceMappings>& device_mappings() const override { return mappings_; }
  void abandon(std::unique_ptr<Algorithm> algorithm, const std::vector<OperationPtr>& operations,
               bool to_the_end) override;
  Bell& wait_bell(int world_rank) const { return world_control_->wait_bell(world_rank); }
  Bell& engine_bell(int world_rank) const { return world_control_->engine_bell(world_rank); }
  void publish_world(const ControlSegment& control) { world_control_ = &control; }

  // Blocks until done() is true: polls for a while, then sleeps; executes whatever there is to execute meanwhile.
  // False when the deadline passed first. tick() runs at least every 100 ms of sleep; done() and tick() may throw.
  bool wait_until(const std::function<bool()>& done, const std::function<bool()>& has_work, Deadline deadline,
                  Interrupt interrupt, bool crowded, const std::function<void()>& tick);
  void throw_if_shut_down() const;
  // Whether something that was pushed to other hosts needs looking after until it has left.
  bool is_in_transit() const { return in_transit_.load(std::memory_order_relaxed); }
  DeadlockTimeout& deadlock_timeout() { return *deadlock_timeout_; }
  // What every rank waits for, once all are found to wait for ever (DeadlockTimeout); "" as long as they are not.
  std::string deadlock_text() const;
  void wake_engine() { ring(engine_bell(rank_)); }
  bool try_progress() { return progress(false); }  // true when something moved
  void watch_peers();                              // notes who died since the last look
  // Why the rank is lost; null: as far as is known it is not.
  const char* cause_of_death(int world_rank) const;

 private:
  class BulkWait;
  std::string lost_text(const std::string& why) const;
  void housekeep();
  void start_reader();
  void monitor_leaders(const Group& group);
  bool must_poll();
  bool progress(bool from_engine, bool* busy = nullptr);
  void run_engine();
  void watch_device(bool has_work);
  void drain_device();

  int rank_;
  std::string hostname_;
  Settings settings_;
  std::atomic<double> timeout_s_;
  std::atomic<bool> own_timeout_;
  Log log_;
  const Kernels& kernels_;
  std::shared_ptr<SegmentRegistry> segments_;
  Stats stats_;
  Network network_;
  std::shared_ptr<Device> device_owner_;
  std::atomic<Device*> device_{nullptr};
  std::shared_ptr<DeviceMappings> mappings_;
  std::mutex nccl_mutex_;
  std::shared_ptr<const NcclLibrary> nccl_;
  bool has_looked_for_nccl_ = false;
  std::unique_ptr<DeviceQueue> device_queue_;  // set once, before device_
  struct Abandoned {
    bool to_the_end = false;
    std::vector<Mark> marks;
    std::unique_ptr<Algorithm> algorithm;
    std::vector<OperationPtr> operations;
    std::vector<std::shared_ptr<void>> keeps;
  };
  std::vector<Abandoned> abandoned_;
  std::atomic<bool> device_is_busy_{false};  // work streams ring no bell
  std::atomic<bool> in_transit_{false};
  std::atomic<int64_t> driven_ns_{0};             // when a waiting thread looked at the links last; 0 without links
  std::atomic<int> bulk_waits_{0};                // threads that do so, and wait for many bytes
  std::atomic<bool> engine_leaves_links_{false};  // the engine sleeps because of such threads
  const ControlSegment* world_control_ = nullptr;
  std::unique_ptr<Group> world_;
  // Goes before the world, whose memory holds the bells: also where the constructor throws.
  struct ReaderEnd {
    std::shared_ptr<NetworkReader> reader;
    ~ReaderEnd() {
      if (reader != nullptr) reader->leave();
    }
  } reader_end_;
  std::unique_ptr<DeadlockTimeout> deadlock_timeout_;

  std::mutex executor_;                         // who may call Group::progress, and guards groups_
  std::vector<std::shared_ptr<Group>> groups_;  // beside the world
  Interrupt interrupt_;
  std::mutex watching_;
  Liveness liveness_;
  struct Death {
    std::atomic<bool> is_known{false};
    std::string why;  // written before
  };
  std::vector<Death> deaths_;  // by world rank
  std::atomic<bool> shut_down_{false};
  std::atomic<bool> stop_{false};
  std::thread engine_;
};

}  // namespace rr
