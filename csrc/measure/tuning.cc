#include "measure/tuning.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "engine/context.h"
#include "measure/bench.h"

namespace rr {
namespace {

enum Phase : uint32_t { kUndecided = 0, kMeasure = 2 };  // besides kTuned

// A slot holds a chunk, and a chunk holds a line for each rank.
size_t least_chunk(int ranks) { return std::max<size_t>(4096, 64 * static_cast<size_t>(ranks)); }

// --- the cache on disk ----------------------------------------------------------------------------------------------

std::string cache_folder() {
  if (const char* own = std::getenv("RINGREDUCE_CACHE"); own != nullptr && *own != '\0') return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0')
    return std::string(xdg) + "/ringreduce";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/ringreduce";
  return "";
}

// What the measurement depends on: the processor, the kernels, the ranks and where they run.
std::string topology(const Context& context, const ControlSegment& control) {
  std::string text = "1 " + std::string(context.kernels().name) + " " + std::to_string(control.size());
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.compare(0, 10, "model name") == 0) {
      text += line;
      break;
    }
  }
  for (int r = 0; r < control.size(); ++r) {
    for (const uint64_t word : control.facts(r).cores) text += word == 0 ? "" : " " + std::to_string(word);
    text += ";";
  }
  return text;
}

std::string cache_file(const Context& context, const ControlSegment& control) {
  const std::string folder = cache_folder();
  if (folder.empty()) return "";
  return folder + "/tuning-" + std::to_string(std::hash<std::string>()(topology(context, control)));
}

bool load(const std::string& path, TunedSizes& tuning) {
  std::ifstream file(path);
  TunedSizes read;
  if (!(file >> read.chunk_nbytes >> read.eager_nbytes)) return false;
  if (read.chunk_nbytes < 4096 || read.chunk_nbytes > kSlotLargest || read.eager_nbytes > kEagerNbytes) return false;
  tuning = read;
  return true;
}

// Best effort: without a cache the next start measures again.
void save(const std::string& path, const TunedSizes& tuning) {
  if (path.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(path.substr(0, path.rfind('/')), ignored);
  const std::string draft = path + "." + std::to_string(::getpid());
  std::ofstream(draft) << tuning.chunk_nbytes << " " << tuning.eager_nbytes << "\n";
  if (std::rename(draft.c_str(), path.c_str()) != 0) std::remove(draft.c_str());
}

// --- measuring ------------------------------------------------------------------------------------------------------

class Bench {
 public:
  Bench(Group& group, Interrupt interrupt) : group_(group), interrupt_(interrupt), buffer_(2 << 20) {}

  // Best time of `tries` all-reduces of nbytes on this rank. The ranks are in step before and after.
  double best_of(int tries, size_t nbytes, int iters) {
    BenchJob job;
    job.src.data = job.dst.data = buffer_.data();
    job.src.dtype = job.dst.dtype = DType::kUInt8;
    job.src.ndim = job.dst.ndim = 1;
    job.src.count = job.dst.count = job.src.dims[0] = job.dst.dims[0] = nbytes;
    job.reduction = {DType::kUInt8, ReduceOp::kMax, 1.0, 1.0, group_.size()};
    job.iters = iters;
    double best = 1e9;
    for (int i = 0; i < tries; ++i) best = std::min(best, bench(group_, job, interrupt_)[0]);
    return best;
  }

 private:
  Group& group_;
  Interrupt interrupt_;
  std::vector<std::byte> buffer_;
};

TunedSizes measure(Group& group, Interrupt interrupt) {
  Bench bench(group, interrupt);
  TunedSizes best;
  double least = 1e9;
  for (const size_t chunk : {size_t{64} << 10, size_t{128} << 10, size_t{256} << 10, size_t{512} << 10}) {
    set_sizes(group, {chunk, best.eager_nbytes}, interrupt);
    const double seconds = bench.best_of(5, 2 << 20, 1);
    if (seconds < least) {
      least = seconds;
      best.chunk_nbytes = chunk;
    }
  }
  best.eager_nbytes = 1 << 10;
  for (const size_t size : {size_t{2} << 10, size_t{4} << 10, size_t{8} << 10, size_t{16} << 10}) {
    set_sizes(group, {best.chunk_nbytes, size}, interrupt);
    const double eager = bench.best_of(5, size, 20);
    set_sizes(group, {best.chunk_nbytes, size - 1}, interrupt);
    const double logged = bench.best_of(5, size, 20);
    if (eager < logged) best.eager_nbytes = size;
  }
  return best;
}

// --- a plan ---------------------------------------------------------------------------------------------------------

std::string hash_text(uint64_t hash) {
  std::array<char, 17> text = {};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

// The ranks of this host; those of others have compared their plans when they met (ringreduce/job/places.py).
void check_plans(const Context& context, const ControlSegment& control, const Hosts& hosts) {
  const std::string me = "[init] rank " + std::to_string(context.rank()) + "/" + std::to_string(control.size());
  const auto hash_of = [&](int rank) { return control.facts(rank).plan_hash; };
  const auto plan_of = [&](int rank) {
    return (hash_of(rank) == 0 ? "without a plan" : "with plan " + hash_text(hash_of(rank))) + " on rank " +
           std::to_string(rank);
  };
  for (const int rank : hosts.here()) {
    if (hash_of(rank) != TuningPlan::kUnusable) continue;
    throw MismatchError(me + ": RINGREDUCE_PLAN: rank " + std::to_string(rank) +
                        " has no plan that it can use, and says why: give all ranks the same file");
  }
  const int first = hosts.leader_here();
  for (const int rank : hosts.here()) {
    if (hash_of(rank) == hash_of(first)) continue;
    throw MismatchError(me + ": RINGREDUCE_PLAN differs: init() was called " + plan_of(first) + ", and " +
                        plan_of(rank) + ": give all ranks the same file");
  }
}

}  // namespace

TunedSizes sizes(const Group& group) {
  const Header& header = group.control().header();
  return {static_cast<size_t>(header.chunk_nbytes), static_cast<size_t>(header.eager_nbytes)};
}

void set_sizes(Group& group, const TunedSizes& wanted, Interrupt interrupt) {
  const size_t least = least_chunk(group.size());
  if (wanted.chunk_nbytes < least || wanted.chunk_nbytes > kSlotLargest || wanted.chunk_nbytes % 64 != 0 ||
      wanted.eager_nbytes > kEagerNbytes) {
    throw InvalidArgumentError("sizes: a chunk of " + std::to_string(wanted.chunk_nbytes) +
                               " bytes, eager messages up to " + std::to_string(wanted.eager_nbytes) +
                               "; a chunk has " + std::to_string(least) + " to " + std::to_string(kSlotLargest) +
                               " bytes, a multiple of 64, an eager message at most " + std::to_string(kEagerNbytes));
  }
  BenchJob barrier;
  barrier.kind = Kind::kBarrier;
  bench(group, barrier, interrupt);
  if (group.hosts().leader_here() == group.rank()) {
    Header& header = group.control().header();
    header.chunk_nbytes = wanted.chunk_nbytes;
    header.eager_nbytes = wanted.eager_nbytes;
    header.tuned.store(kTuned, std::memory_order_release);  // every rank is here, and has seen kMeasure if it was said
  }
  bench(group, barrier, interrupt);
}

void tune(Context& context) {
  Group& world = context.world();
  const ControlSegment& control = world.control();
  Header& header = control.header();
  const Interrupt interrupt = context.interrupt();
  const TuningPlan& plan = context.plan();
  check_plans(context, control, world.hosts());
  const std::string path = cache_file(context, control);
  const bool alone = !world.hosts().several();
  if (world.hosts().leader_here() == world.rank()) {
    TunedSizes tuning;
    tuning.eager_nbytes = usual_eager_nbytes(world.hosts());
    // Ranks that share cores time the scheduler, not the machine; a forced algorithm is not what auto would run.
    const std::string& algorithm = context.settings().algorithm;
    const bool can_measure = alone && world.size() > 1 && !world.ranks_outnumber_cores() && algorithm == "auto";
    const bool is_planned = plan.hash != 0;
    // There each exchange through the log has the scheduler run every rank once more (16 KiB, 2 cores, all-reduce with
    // the default limit over this one: 4 ranks 1.96, 8 ranks 2.44, 16 ranks 1.81).
    if (alone && world.ranks_outnumber_cores()) tuning.eager_nbytes = kEagerNbytes;
    const size_t wished = context.settings().chunk_nbytes;
    // On several hosts what is eager must be so on all of them: the defaults.
    const bool known = is_planned || (alone && load(path, tuning)) || !can_measure || wished != 0;
    if (is_planned) tuning.chunk_nbytes = plan.chunk_nbytes;
    if (plan.eager_nbytes != 0) tuning.eager_nbytes = plan.eager_nbytes;
    // These fold in another order than what is eager: the limit between them must not come of a measurement.
    if (algorithm == "ring" || algorithm == "recursive_doubling" || algorithm == "tree")
      tuning.eager_nbytes = usual_eager_nbytes(world.hosts());
    if (wished != 0) tuning.chunk_nbytes = wished;
    tuning.chunk_nbytes = std::clamp(round_up(tuning.chunk_nbytes, 64), least_chunk(world.size()), kSlotLargest);
    header.chunk_nbytes = tuning.chunk_nbytes;
    // A round costs a GPU's driver about 50 us whatever its length (H200, 2 ranks, 64 MiB: 10.9 ms by 256 KiB, 7.0 by
    // 1 MiB; 4 ranks: 26 ms by 256 KiB, 86 by what was once calibrated), so it is never calibrated.
    header.device_chunk_nbytes = wished != 0 ? tuning.chunk_nbytes : kSlotLargest;
    header.eager_nbytes = tuning.eager_nbytes;
    header.tuned.store(known ? kTuned : kMeasure, std::memory_order_release);
    world.negotiation().segment().ring_all();
  }
  const double limit_s = context.init_timeout_s();
  const bool is_decided = context.wait_loop().wait_until(
      [&] { return header.tuned.load(std::memory_order_acquire) != kUndecided; }, [] { return false; },
      Deadline::after_s(limit_s), interrupt, true, [&] { world.throw_if_failed(); });
  if (!is_decided) {
    throw TimeoutError(
        "[init] rank " + std::to_string(context.rank()) + ": rank " + std::to_string(world.hosts().leader_here()) +
        ", which chooses the chunk's size for this host, did not do so within " + seconds_text(limit_s) + " s");
  }
  if (header.tuned.load(std::memory_order_acquire) == kMeasure) {
    const TunedSizes measured = measure(world, interrupt);
    set_sizes(world, measured, interrupt);
    if (world.rank() == 0) save(path, measured);
    world.forget_counts();
  }
}

}  // namespace rr
