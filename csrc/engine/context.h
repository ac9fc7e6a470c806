// One rank's membership of one job: its groups, its GPU, the engine thread, the watch over its peers, and how its
// threads wait.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "base/stats.h"
#include "engine/context_options.h"
#include "engine/groups.h"
#include "engine/late/status_answers.h"
#include "engine/late/wait_sampler.h"
#include "engine/operation_timeout.h"
#include "engine/peer_watch.h"
#include "engine/rank_presence.h"
#include "engine/remote_link.h"
#include "engine/wait_loop.h"
#include "operations/calling_threads.h"
#include "os/segments.h"
#include "transport/network.h"

namespace rr {

class Context {
 public:
  // Chooses the sizes that depend on the machine, before the first operation: writes Header::tuned on all ranks.
  using Tune = void (*)(Context&);

  // Collective. fd: the world's control segment on this host. pidfds[r] watches rank r, -1 = not watched. segments may
  // be shared with other contexts of the process. timeout_s: instead of the knob; < 0 = the knob. network: the other
  // hosts, if there are any.
  Context(int fd, int rank, int size, const std::vector<int>& pidfds, std::string hostname,
          std::shared_ptr<SegmentRegistry> segments, Interrupt interrupt, Tune tune, double timeout_s = -1,
          Network network = {}, Recording recording = {}, TuningPlan plan = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Group& world() { return groups_.world(); }
  // Collective over ranks. Whoever has handles of its operations shares the group, and keeps this context too.
  // id: never used before in this context, the same on all ranks; the links to other hosts go by it.
  std::shared_ptr<Group> add_group(int fd, const std::vector<int>& ranks, int id, Interrupt interrupt);
  void remove_group(Group* group, Interrupt interrupt);  // collective; not the world
  // why: what the ranks that miss this one are told, in place of that it has left. Empty: nothing.
  void shutdown(const std::string& why = "");
  // Ends all groups of this rank; the other members are told why.
  void fail_groups(FatalKind kind, const std::string& text) { groups_.fail(kind, text); }
  // What a thread of this rank's own does: an exception fails all groups, and does not end the process.
  void run_guarded(const char* thread, const std::function<void()>& body);
  // The same for a process that an exception ends at once, with all that is under way.
  void fail_as_lost(const std::string& why);
  void forget_after_fork();  // in a forked child, which may do nothing else with it: closes descriptors
  bool is_shut_down() const { return shut_down_.load(std::memory_order_acquire); }

  // Contexts of this process that have not been shut down. Each sees the waits in its own groups only.
  static int alive() { return alive_.load(std::memory_order_relaxed); }

  int rank() const { return rank_; }
  const Settings& settings() const { return settings_; }
  const TuningPlan& plan() const { return plan_; }
  double timeout_s() const { return timeout_.seconds(); }  // of operations; 0 = never
  std::string timeout_text() const { return timeout_.text(); }
  double init_timeout_s() const { return init_timeout_s_; }  // of the constructor's waits; 0 = never
  void set_timeout_s(double timeout_s) { timeout_.set(timeout_s); }
  const Log& log() const { return log_; }
  const Kernels& kernels() const { return kernels_; }
  const SegmentRegistry& segments() const { return *segments_; }
  Stats& stats() { return world_control_->stats(rank_); }
  Recorder& recorder() const { return *recording_.recorder; }
  RecordedGroup recorded_group(int id, const std::vector<int>& world_ranks) const;
  Interrupt interrupt() const { return interrupt_; }
  const std::string& hostname() const { return hostname_; }
  int host_of(int world_rank) const {
    return network_.host_of.empty() ? 0 : network_.host_of[static_cast<size_t>(world_rank)];
  }
  const std::string& network_name() const { return network_.name; }
  bool do_links_ring() const { return network_.reader != nullptr; }
  int most_group() const { return network_.most_group; }  // the highest id of a group
  std::unique_ptr<Link> remote_link(int world_rank, int channel);
  RankDevice& gpu() { return gpu_; }
  const RankDevice& gpu() const { return gpu_; }
  // To keep with what may outlast remove_group(). The world stays the context's.
  std::shared_ptr<Group> shared(Group& group) { return groups_.shared(group); }
  Bell& wait_bell(int world_rank) const { return world_control_->wait_bell(world_rank); }
  WaitLine& wait_line() const { return world_control_->wait_line(rank_); }
  RankPresence& presence() { return presence_; }
  Bell& engine_bell(int world_rank) const { return world_control_->engine_bell(world_rank); }
  // By the world's constructor, before another thread or group knows of this context.
  void publish_world(const ControlSegment& control) {
    world_control_ = &control;
    wait_loop_.use_world(control, rank_);
  }
  // By the same, once it knows where the ranks are: for who looks on.
  void identify_world(const ControlSegment& control, const Hosts& hosts) {
    presence_.identify(control, hosts, {hostname_, recording_.context, recording_.job_ranks, plan_.hash});
  }

  WaitLoop& wait_loop() { return wait_loop_; }
  CallingThreads& calling_threads() { return calling_threads_; }
  void throw_if_shut_down() const;
  bool is_in_transit() const { return groups_.is_in_transit(); }
  DeadlockTimeout& deadlock_timeout() { return *deadlock_timeout_; }
  std::string calls_text() const { return groups_.calls_text(); }        // what this rank has called last, in words
  const RankStatuses& statuses() const { return answers_->statuses(); }  // questions to ranks: where they stand
  void set_where(WhereInProgram where) { answers_->set_where(where); }
  // What every rank waits for, once all are found to wait for ever (DeadlockTimeout); "" as long as they are not.
  std::string deadlock_text() const;
  bool try_progress() { return groups_.progress(false); }  // true when something moved
  PeerWatch& peers() { return peers_; }

 private:
  std::string lost_text(const std::string& why) const;
  void meet(Tune tune);
  void start_reader();
  void print_warnings();
  void monitor_leaders(const Group& group);

  int rank_;
  std::string hostname_;
  Settings settings_;
  const TuningPlan plan_;
  OperationTimeout timeout_;
  const double init_timeout_s_;
  Log log_;
  const Kernels& kernels_;
  std::shared_ptr<SegmentRegistry> segments_;
  const Recording recording_;
  std::vector<int> host_numbers_;  // of the world's ranks, on several hosts: as in Hosts::of
  // What comes below refers to these three.
  Network network_;
  PeerWatch peers_;
  std::mutex executor_;  // whose holder may call Group::progress(), and sees the list of groups
  RankDevice gpu_;
  const ControlSegment* world_control_ = nullptr;
  RankPresence presence_;
  RemoteLinks remote_links_;
  CallingThreads calling_threads_;
  Groups groups_;
  WaitLoop wait_loop_;
  // Goes before wait_loop_, which the reader's thread rings, and before the world, whose memory holds the bells: also
  // where the constructor throws.
  struct ReaderEnd {
    std::shared_ptr<NetworkReader> reader;
    ~ReaderEnd() {
      if (reader != nullptr) reader->leave();
    }
  } reader_end_;
  std::unique_ptr<DeadlockTimeout> deadlock_timeout_;
  std::unique_ptr<StatusAnswers> answers_;
  std::unique_ptr<WaitSampler> sampler_;  // of the leader of a host with others to wait for

  inline static std::atomic<int> alive_{0};
  struct Alive {
    Alive() { alive_.fetch_add(1); }
    ~Alive() { alive_.fetch_sub(1); }
  };
  std::optional<Alive> is_alive_{std::in_place};  // until shutdown()

  Interrupt interrupt_;
  std::atomic<bool> shut_down_{false};
  std::thread engine_;
};

}  // namespace rr
