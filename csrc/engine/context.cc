#include "engine/context.h"

#include <sys/prctl.h>

#include <algorithm>

#include "base/errors.h"
#include "engine/device_queue.h"
#include "engine/tuning.h"

namespace rr {
namespace {
constexpr int64_t kSleepNs = 100000000;  // a blocked call looks after its peers this often
constexpr int64_t kPollNs = 50000;       // links to other hosts ring no bell, so somebody looks this often
// The engine leaves the links to a thread that waits and has looked at them so lately: two pollers cost twice.
constexpr int64_t kDrivenNs = 4 * kPollNs;
// A wait on links that has lasted so long is for many bytes, not for one message: it looks once every two naps' time,
// also just after something has come, and leaves the core to whoever works (Open MPI, 16 MiB, 4 hosts on 2 cores: 219
// to 212 ms).
constexpr int64_t kBulkNs = 1000000;
constexpr int64_t kIdleNs = 250000000;  // the engine likewise: 4 wake-ups a second, about 0.01 % of a core
// The same of lanes of a GPU: a mark is waited for by looking at it. A short nap needs a small slack of the timer,
// whose default of 50 us comes on top.
constexpr int64_t kDeviceNapNs = 10000;
constexpr double kDrainS = 5.0;
// Ranks that share cores give way this often before they sleep. Each yield lets the others of the core run once, but
// recent kernels also take a time slice (2.8 ms) from who yields, so that one that yields on and on is put behind all
// others for milliseconds (8 B, 8 ranks on 2 cores, p50/p99 us: 50 us of yields 27/2800, 8 yields 26/140, none 89/380).
constexpr int kYields = 8;
constexpr double kFinishS = 5;  // shutdown() waits so long for operations on the GPU that streams wait for

// Lets this thread's naps end when they should, for as long as it lives.
class ShortNaps {
 public:
  explicit ShortNaps(bool wanted) {
    if (!wanted) return;
    slack_ns_ = ::prctl(PR_GET_TIMERSLACK);
    if (slack_ns_ > 0) ::prctl(PR_SET_TIMERSLACK, 1000UL);
  }
  ~ShortNaps() {
    if (slack_ns_ > 0) ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns_));
  }
  ShortNaps(const ShortNaps&) = delete;
  ShortNaps& operator=(const ShortNaps&) = delete;

 private:
  int slack_ns_ = 0;
};
}  // namespace

Context::Context(int fd, int rank, int size, const std::vector<int>& pidfds, std::string hostname,
                 std::shared_ptr<SegmentRegistry> segments, Interrupt interrupt, double timeout_s, Network network)
    : rank_(rank),
      hostname_(std::move(hostname)),
      settings_(Settings::from_environment()),
      timeout_s_(timeout_s < 0 ? settings_.timeout_s : timeout_s),
      own_timeout_(timeout_s >= 0),
      log_(settings_.log_level, rank),
      kernels_(rr::kernels(std::string_view(settings_.isa))),
      segments_(std::move(segments)),
      network_(std::move(network)),
      interrupt_(interrupt),
      liveness_(pidfds),
      dead_(pidfds.size()) {
  if (settings_.transport == "tcp") {
    throw UnavailableError("RINGREDUCE_TRANSPORT=tcp: this transport does not exist yet; use auto");
  }
  if (settings_.transport == "mpi" && size > 1 && network_.host_of.empty()) {
    throw UnavailableError(
        "RINGREDUCE_TRANSPORT=mpi: these ranks have met without MPI; start the job with mpirun and call init(), or use "
        "auto");
  }
  if (pidfds.size() != static_cast<size_t>(size)) throw InvalidArgumentError("one pidfd for each rank is needed");
  if (!network_.host_of.empty() && network_.host_of.size() != pidfds.size()) {
    throw InvalidArgumentError("one host for each rank is needed");
  }
  std::vector<int> everyone;
  for (int r = 0; r < size; ++r) everyone.push_back(r);
  world_ = std::make_unique<Group>(*this, fd, everyone, 0);
  world_->await_attendance(this->timeout_s(), interrupt);
  tune(*this);
  engine_ = std::thread([this] { run_engine(); });
}

Context::~Context() { shutdown(); }

namespace {

// Counts what leaves the host.
class CountedLink final : public Link {
 public:
  CountedLink(std::unique_ptr<Link> link, std::atomic<uint64_t>& sent) : link_(std::move(link)), sent_(sent) {}
  size_t push(const void* src, size_t nbytes) override {
    const size_t pushed = link_->push(src, nbytes);
    add(sent_, pushed);
    return pushed;
  }
  size_t pull(void* dst, size_t nbytes) override { return link_->pull(dst, nbytes); }
  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    return link_->fold(dst, nbytes, reduction, kernels);
  }

 private:
  std::unique_ptr<Link> link_;
  std::atomic<uint64_t>& sent_;
};

}  // namespace

void Context::use_device(std::shared_ptr<Device> device) {
  const std::lock_guard lock(executor_);
  if (device_owner_ != nullptr && device_owner_->ordinal() != device->ordinal()) {
    throw InvalidArgumentError("this rank works on GPU " + std::to_string(device_owner_->ordinal()) +
                               "; it cannot communicate memory of GPU " + std::to_string(device->ordinal()) +
                               " as well: one rank, one GPU");
  }
  if (device_owner_ != nullptr) return;
  throw_if_shut_down();
  mappings_ = DeviceMappings::of(device);
  device_queue_ = std::make_unique<DeviceQueue>(*this, device);
  device_owner_ = std::move(device);
  device_.store(device_owner_.get(), std::memory_order_release);
}

std::shared_ptr<const NcclLibrary> Context::nccl() {
  const std::lock_guard lock(nccl_mutex_);
  if (has_looked_for_nccl_) return nccl_;
  has_looked_for_nccl_ = true;
  try {
    nccl_ = nccl_library(settings_.nccl_library);
  } catch (const UnavailableError& error) {
    const bool is_wanted = settings_.cuda_road == "nccl" || !settings_.nccl_library.empty();
    log_.write(is_wanted ? LogLevel::kWarning : LogLevel::kInfo, error.what());
  }
  return nccl_;
}

DeviceQueue& Context::device_queue() const {
  if (device() == nullptr) throw InvalidArgumentError("this rank has no GPU yet");
  return *device_queue_;
}

bool Context::with_lanes(const std::function<void(Device&)>& use) {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  use(*device_owner_);
  if (device_owner_->is_busy()) device_is_busy_.store(true, std::memory_order_relaxed);
  return true;
}

std::shared_ptr<Group> Context::shared(Group& group) {
  const std::lock_guard lock(executor_);
  for (auto& known : groups_) {
    if (known.get() == &group) return known;
  }
  return std::shared_ptr<Group>(std::shared_ptr<void>(), &group);
}

std::unique_ptr<Link> Context::remote_link(int world_rank, int channel) {
  return std::make_unique<CountedLink>(network_.link(world_rank, channel), stats_.bytes_on_wire);
}

bool Context::must_poll() {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (!lock.owns_lock()) return true;  // somebody is at work, so there is some
  bool must = world_->must_poll() || in_transit_.load(std::memory_order_relaxed);
  for (auto& group : groups_) must |= group->must_poll();
  return must;
}

std::shared_ptr<Group> Context::add_group(int fd, const std::vector<int>& ranks, int id, Interrupt interrupt) {
  throw_if_shut_down();
  if (id < 1) throw InvalidArgumentError("a group's id is 1 or more, not " + std::to_string(id));
  auto group = std::make_shared<Group>(*this, fd, ranks, id);
  group->await_attendance(timeout_s(), interrupt);
  copy_tuning(world_->board(), group->board());
  const std::lock_guard lock(executor_);
  groups_.push_back(group);
  return group;
}

void Context::remove_group(Group* group, Interrupt interrupt) {
  throw_if_shut_down();
  Request barrier;
  group->wait(*group->submit(barrier, interrupt), -1, interrupt);
  if (device() != nullptr) device_queue_->forget(*group);
  // Let go of without the lock: unpinning its memory may wait for streams that only the engine's thread lets go on.
  std::shared_ptr<Group> removed;
  const std::lock_guard lock(executor_);
  group->retire();
  for (auto one = groups_.begin(); one != groups_.end(); ++one) {
    if (one->get() != group) continue;
    removed = std::move(*one);
    groups_.erase(one);
    break;
  }
}

void Context::shutdown() {
  // A caller that has let a stream wait for an operation takes it for done.
  if (device() != nullptr && !is_shut_down()) device_queue_->drain(kFinishS);
  if (shut_down_.exchange(true)) return;
  if (device() != nullptr) device_queue_->stop();
  stop_.store(true);
  wake_all(engine_bell(rank_));
  wake_all(wait_bell(rank_));
  if (engine_.joinable()) engine_.join();
  const std::lock_guard lock(executor_);
  world_->leave();
  for (auto& group : groups_) group->leave();
  drain_device();
}

void Context::throw_if_shut_down() const {
  if (!is_shut_down()) return;
  throw ShutdownError(
      "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
      "allgather or broadcast a tensor after one of the ranks finished execution. (ringreduce rank " +
      std::to_string(rank_) + ": shutdown() was called here)");
}

// Executes one step of what there is, if no other thread of this rank does.
bool Context::progress(bool from_engine, bool* busy) {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  const bool has_links = !network_.host_of.empty();
  if (has_links && !from_engine) driven_ns_.store(now_ns(), std::memory_order_relaxed);
  bool moved = world_->has_work() && world_->progress(from_engine);
  bool work = world_->is_busy();
  for (auto& group : groups_) {
    if (!group->has_work()) continue;
    moved |= group->progress(from_engine);
    work |= group->is_busy();
  }
  if (network_.progress) {
    try {
      in_transit_.store(network_.progress(), std::memory_order_relaxed);
    } catch (const Error& error) {
      in_transit_.store(false, std::memory_order_relaxed);
      record_failure(world_->board(), kind_of(error), error.what());
    }
  }
  if (device() != nullptr) watch_device(work);
  if (busy != nullptr) *busy = work || in_transit_.load(std::memory_order_relaxed);
  return moved;
}

// Executor lock held.
void Context::watch_device(bool has_work) {
  try {
    for (Abandoned& item : abandoned_) {
      const auto has_passed = [this](const Mark& mark) { return device()->passed(mark); };
      item.marks.erase(std::remove_if(item.marks.begin(), item.marks.end(), has_passed), item.marks.end());
    }
  } catch (const Error&) {
    for (Abandoned& item : abandoned_) item.marks.clear();  // a broken context, as below
  }
  const auto is_over = [](const Abandoned& item) { return item.marks.empty() && !item.to_the_end; };
  abandoned_.erase(std::remove_if(abandoned_.begin(), abandoned_.end(), is_over), abandoned_.end());
  bool is_busy = (has_work && device()->is_busy()) || world_->must_poll_device();
  for (const auto& group : groups_) is_busy |= group->must_poll_device();
  device_is_busy_.store(is_busy, std::memory_order_relaxed);
}

void Context::abandon(std::unique_ptr<Algorithm> algorithm, const std::vector<OperationPtr>& operations,
                      bool to_the_end) {
  if (algorithm == nullptr || device() == nullptr) return;
  Abandoned item;
  item.to_the_end = to_the_end;
  item.algorithm = std::move(algorithm);
  item.operations = operations;
  for (const OperationPtr& operation : operations) item.keeps.push_back(operation->keep);
  try {
    for (size_t lane = 0; lane < kLanes; ++lane) item.marks.push_back(device()->mark(static_cast<Lane>(lane)));
  } catch (const Error&) {
    item.marks.clear();  // the GPU's context is broken, so nothing runs in it any more
  }
  abandoned_.push_back(std::move(item));
}

// Executor lock held. What lanes still copy to and from goes away next.
void Context::drain_device() {
  for (Abandoned& item : abandoned_) item.to_the_end = false;
  const Deadline deadline = Deadline::after_s(kDrainS);
  while (device() != nullptr && !abandoned_.empty() && !deadline.passed()) {
    watch_device(true);
    relax(true);
  }
  if (!abandoned_.empty()) log_.warning("the GPU has not come to an end within " + std::to_string(kDrainS) + " s");
}

bool Context::wait_until(const std::function<bool()>& done, const std::function<bool()>& has_work, Deadline deadline,
                         Interrupt interrupt, bool crowded, const std::function<void()>& tick) {
  Bell& bell = wait_bell(rank_);
  const int64_t spin_ns = static_cast<int64_t>(settings_.spin_us * 1000);
  int64_t polling_since = 0;
  int polls = 0;
  int executed = 0;
  int64_t looked_ns = 0;
  const auto look_around = [&] {
    looked_ns = now_ns();
    if (interrupt != nullptr) interrupt();
    housekeep();
    tick();
  };
  const bool polls_links = !network_.host_of.empty();
  const int64_t began_ns = polls_links ? now_ns() : 0;
  const auto is_bulk = [&] { return polls_links && now_ns() - began_ns > kBulkNs; };
  bool has_napped = false;  // and nothing has come since: one look at the links is as good as 50 us of them
  const auto polled_enough = [&] {
    ++polls;
    if (has_napped) return true;
    if (crowded) return polls > kYields || spin_ns == 0;
    // The clock costs as much as a poll, so it is read every 16th time.
    if (polls % 16 != 0 && spin_ns != 0) return false;
    const int64_t now = now_ns();
    if (polling_since == 0) polling_since = now;
    return now - polling_since >= spin_ns;
  };
  for (;;) {
    if (done()) return true;
    if (has_work() && progress(false)) {
      polling_since = polls = 0;
      has_napped = is_bulk();
      if (++executed % 1024 == 0) look_around();
      continue;
    }
    if (!polled_enough()) {
      relax(crowded);
      continue;
    }
    if (deadline.passed()) return false;
    const SleepScope scope(bell);
    const uint32_t seen = bell.seq.load(std::memory_order_seq_cst);
    if (done()) return true;
    if (has_work() && progress(false)) continue;
    add(stats_.sleeps, 1);
    const bool polls_lanes = device_is_busy_.load(std::memory_order_relaxed);
    const int64_t nap_ns = polls_lanes ? kDeviceNapNs : !polls_links ? kSleepNs : is_bulk() ? 2 * kPollNs : kPollNs;
    const ShortNaps exact(polls_lanes);
    const Woken woken = sleep_on(bell, seen, deadline.left_ns(nap_ns));
    has_napped = (polls_links || polls_lanes) && woken != Woken::kRung;
    polling_since = 0;  // polls stays: who has slept once and was woken too early gives way no more, it sleeps again
    // A rank whose bell other operations keep ringing looks around as often as one that sleeps in peace.
    if (looked_ns == 0) looked_ns = now_ns();
    const bool in_peace = woken != Woken::kRung && !polls_links && !polls_lanes;
    if (in_peace || now_ns() - looked_ns >= kSleepNs) look_around();
  }
}

void Context::forget_after_fork() { liveness_.close(); }

void Context::watch_peers() {
  const std::lock_guard lock(watching_);
  for (const int rank : liveness_.newly_dead()) dead_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
}

void Context::housekeep() {
  watch_peers();
  const std::lock_guard lock(executor_);
  if (mappings_ != nullptr) mappings_->trim();
  world_->housekeep();
  for (auto& group : groups_) group->housekeep();
}

// Sleeps on the engine bell while there is nothing to do, and like a waiting caller while an operation is under way;
// never polls.
void Context::run_engine() {
  Bell& idle_bell = engine_bell(rank_);
  Bell& busy_bell = wait_bell(rank_);
  int64_t looked_ns = now_ns();  // by the clock, because the bells of a busy rank let no sleep run out
  while (!stop_.load(std::memory_order_acquire)) {
    if (const int64_t now = now_ns(); now - looked_ns >= kSleepNs) {
      looked_ns = now;
      housekeep();
    }
    const SleepScope idle(idle_bell);
    const uint32_t seen_idle = idle_bell.seq.load(std::memory_order_seq_cst);
    bool busy = false;
    int64_t sleep_ns = kIdleNs;
    {
      const SleepScope scope(busy_bell);
      const uint32_t seen_busy = busy_bell.seq.load(std::memory_order_seq_cst);
      const int64_t now = now_ns();
      if (now - driven_ns_.load(std::memory_order_relaxed) < kDrivenNs) {
        sleep_on(busy_bell, seen_busy, kDrivenNs);
        continue;
      }
      if (progress(true, &busy)) continue;
      int64_t linger = INT64_MAX;
      if (const std::unique_lock lock(executor_, std::try_to_lock); lock.owns_lock()) {
        linger = world_->linger_until_ns();
        for (auto& group : groups_) linger = std::min(linger, group->linger_until_ns());
      }
      if (linger != INT64_MAX) {
        sleep_ns = std::max<int64_t>(1000, std::min(kIdleNs, linger - now_ns()));
        busy = false;
      }
      if (busy && !stop_.load(std::memory_order_acquire)) {
        const bool polls_lanes = device_is_busy_.load(std::memory_order_relaxed);
        const ShortNaps exact(polls_lanes);
        sleep_on(busy_bell, seen_busy, polls_lanes ? kDeviceNapNs : must_poll() ? kPollNs : kSleepNs);
        continue;
      }
    }
    if (stop_.load(std::memory_order_acquire)) return;
    sleep_on(idle_bell, seen_idle, sleep_ns);
  }
}

}  // namespace rr
