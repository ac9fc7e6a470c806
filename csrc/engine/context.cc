#include "engine/context.h"

#include <stdexcept>

#include "base/errors.h"
#include "base/text.h"
#include "engine/gpu/device_queue.h"
#include "engine/remote_link.h"
#include "os/thread.h"

namespace rr {
namespace {
constexpr double kFinishS = 5;  // shutdown() waits so long for operations on the GPU that streams wait for

Recording with_recorder(Recording recording) {
  if (recording.recorder == nullptr) recording.recorder = std::make_shared<Recorder>();
  return recording;
}
}  // namespace

Context::Context(int fd, int rank, int size, const std::vector<int>& pidfds, std::string hostname,
                 std::shared_ptr<SegmentRegistry> segments, Interrupt interrupt, Tune tune, double timeout_s,
                 Network network, Recording recording, TuningPlan plan)
    : rank_(rank),
      hostname_(std::move(hostname)),
      settings_(Settings::from_environment()),
      plan_(plan),
      timeout_(timeout_s, settings_.timeout_s),
      init_timeout_s_(timeout_s < 0 ? settings_.init_timeout_s : timeout_s),
      log_(settings_.log_level, rank),
      kernels_(rr::kernels(std::string_view(settings_.isa))),
      segments_(std::move(segments)),
      recording_(with_recorder(std::move(recording))),
      network_(std::move(network)),
      peers_(pidfds, network_.reader),
      gpu_(*this, executor_, network_.device_messages),
      presence_(fd, rank),
      groups_(executor_, network_, gpu_),
      wait_loop_({groups_, gpu_, network_, settings_.spin_us,
                  [this] {
                    peers_.look();
                    print_warnings();
                    groups_.housekeep();
                    if (answers_ != nullptr) answers_->look();
                  }}),
      interrupt_(interrupt) {
  if (settings_.transport == "mpi" && size > 1 && network_.host_of.empty()) {
    throw UnavailableError(
        "RINGREDUCE_TRANSPORT=mpi: these ranks have met without MPI; start the job with mpirun and call init(), or use "
        "auto");
  }
  if (pidfds.size() != static_cast<size_t>(size)) throw InvalidArgumentError("one pidfd for each rank is needed");
  if (!network_.host_of.empty() && network_.host_of.size() != pidfds.size()) {
    throw InvalidArgumentError("one host for each rank is needed");
  }
  if (!network_.host_of.empty()) host_numbers_ = Hosts(network_.host_of, rank_).of;
  std::vector<int> everyone;
  for (int r = 0; r < size; ++r) everyone.push_back(r);
  groups_.set_world(std::make_unique<Group>(*this, fd, everyone, 0));
  answers_ = std::make_unique<StatusAnswers>(
      StatusAnswers::From{world().control(), world().hosts(), rank, hostname_, [this] { return groups_.calls_text(); },
                          [this](int world_rank) { return peers_.pid_of(world_rank); },
                          [this] { return sampler_ != nullptr ? sampler_->late_here() : ""; }});
  // Hosts do not tell each other who waits.
  deadlock_timeout_ =
      std::make_unique<DeadlockTimeout>(world().control(), rank, network_.host_of.empty() ? settings_.verdict_s : 0);
  try {
    meet(tune);
  } catch (const MismatchError&) {  // each rank finds it
    throw;
  } catch (const TimeoutError& error) {  // which names the ranks that are missed
    fail_groups(FatalKind::kTimeout, world().here() + "] " + error.what());
    throw;
  } catch (const std::runtime_error& error) {
    fail_groups(FatalKind::kPeerLost, lost_text(std::string("init() failed there: ") + error.what()));
    throw;
  } catch (...) {  // of the interrupt; Python's own is no runtime_error
    fail_groups(FatalKind::kPeerLost, lost_text("an exception, such as KeyboardInterrupt, ended its init()"));
    throw;
  }
}

// A program may catch what this throws and go on without a context, so its peers would see it live, and wait for it.
void Context::meet(Tune tune) {
  start_reader();
  monitor_leaders(world());
  world().await_attendance(init_timeout_s_, interrupt_);
  tune(*this);
  if (world().size() > 1 && world().hosts().leader_here() == rank_) {
    sampler_ = std::make_unique<WaitSampler>(
        WaitSampler::From{groups_, peers_, remote_links_, statuses(), log_, *recording_.recorder,
                          settings_.late_warning_percent / 100, [] { return Context::alive() == 1; }});
  }
  presence_.hold(peers_);
  engine_ = start_thread([this] { run_guarded("engine", [this] { wait_loop_.run_engine(); }); });
}

Context::~Context() { shutdown(); }

RecordedGroup Context::recorded_group(int id, const std::vector<int>& world_ranks) const {
  std::vector<int> ranks;
  for (const int rank : world_ranks) {
    ranks.push_back(recording_.job_ranks.empty() ? rank : recording_.job_ranks[static_cast<size_t>(rank)]);
  }
  return recording_.recorder->add_group(recording_.context, id, std::move(ranks));
}

std::unique_ptr<Link> Context::remote_link(int world_rank, int channel) {
  const int host = host_numbers_[static_cast<size_t>(world_rank)];
  return std::make_unique<RemoteLink>(network_.link(world_rank, channel), remote_links_, stats().bytes_on_wire,
                                      world_control_->link_score(rank_, host),
                                      [this, world_rank] { return has_left(world_control_->line(world_rank)); });
}

std::shared_ptr<Group> Context::add_group(int fd, const std::vector<int>& ranks, int id, Interrupt interrupt) {
  throw_if_shut_down();
  if (id < 1 || id > most_group()) {
    throw InvalidArgumentError("a group's id is 1 to " + std::to_string(most_group()) + " here, not " +
                               std::to_string(id));
  }
  auto group = std::make_shared<Group>(*this, fd, ranks, id);
  monitor_leaders(*group);
  group->await_attendance(timeout_s(), interrupt);
  group->copy_sizes(world());
  groups_.add(group);
  return group;
}

// A group that has failed is removed without asking its members: they know that it has failed, or will.
void Context::remove_group(Group* group, Interrupt interrupt) {
  throw_if_shut_down();
  // A stream that has been let wait for an operation goes on with its result.
  if (gpu_.device() != nullptr) gpu_.queue().drain(kFinishS, group);
  try {
    group->finish_all(interrupt);
  } catch (const Error&) {
    if (!has_failed(group->control())) throw;
  }
  if (gpu_.device() != nullptr) gpu_.queue().forget(*group);
  groups_.end(*group);
  if (gpu_.device() != nullptr) gpu_.device()->free_released();  // the group's scratch memory
}

void Context::shutdown(const std::string& why) {
  // A caller that has let a stream wait for an operation takes it for done.
  if (gpu_.device() != nullptr && !is_shut_down()) gpu_.queue().drain(kFinishS);
  if (shut_down_.exchange(true)) return;
  const bool has_gpu = [this] {
    const std::lock_guard lock(executor_);  // RankDevice::use() is over in each other thread, or it throws from now on
    return gpu_.device() != nullptr;
  }();
  if (has_gpu) gpu_.queue().stop();
  if (sampler_ != nullptr) sampler_->stop();
  is_alive_.reset();
  wait_loop_.stop();
  if (engine_.joinable()) engine_.join();
  {
    const std::lock_guard lock(executor_);
    groups_.leave(why.empty() ? "" : lost_text(why));
  }
  if (answers_ != nullptr) answers_->stop();
  if (network_.reader != nullptr) network_.reader->leave();
  presence_.close();
  peers_.drop();
}

std::string Context::lost_text(const std::string& why) const {
  return groups_.world().here() + "] " + kLostRank + std::to_string(rank_) + ": " + why;
}

void Context::fail_as_lost(const std::string& why) {
  if (is_shut_down()) return;  // it has said why, and others may still finish what it has finished
  fail_groups(FatalKind::kPeerLost, lost_text(why));
}

void Context::run_guarded(const char* thread, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    fail_groups(kind_of(error), groups_.world().here() + "] the " + thread + "'s thread has failed: " + error.what());
  }
}

void Context::throw_if_shut_down() const {
  if (!is_shut_down()) return;
  throw ShutdownError(
      "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
      "allgather or broadcast a tensor after one of the ranks finished execution. (ringreduce rank " +
      std::to_string(rank_) + (network_.name == "mpi" ? ": shutdown() or MPI.Finalize()" : ": shutdown()") +
      " was called here)");
}

void Context::start_reader() {
  if (network_.reader == nullptr) return;
  reader_end_.reader = network_.reader;
  network_.reader->start([this] {
    wait_loop_.wake_callers();
    wait_loop_.wake_engine();
  });
}

void Context::print_warnings() {
  if (network_.reader == nullptr) return;
  for (const std::string& text : network_.reader->new_warnings()) log_.warning(text);
}

// Of what happens to a rank its host's leader tells the others; of what happens to a leader nobody does.
void Context::monitor_leaders(const Group& group) {
  const Hosts& hosts = group.hosts();
  if (network_.reader == nullptr || hosts.leader_here() != group.rank()) return;
  std::vector<int> leaders;
  for (int host = 0; host < hosts.count(); ++host) {
    if (host != hosts.mine) leaders.push_back(group.ranks()[static_cast<size_t>(hosts.leader(host))]);
  }
  network_.reader->monitor(leaders);
}

void Context::forget_after_fork() {
  peers_.close();
  presence_.close();
}

std::string Context::deadlock_text() const {
  if (!groups_.has_world()) return "";  // it is being made
  const ControlSegment& control = groups_.world().control();
  if (!has_failed(control)) return "";
  return control.header().deadlock_timed_out.load() != 0 ? failure_text(control) : "";
}

}  // namespace rr
