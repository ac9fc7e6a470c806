#include "measure/tuning.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/context.h"
#include "measure/bench.h"

namespace rr {
namespace {

enum Phase : uint32_t { kUndecided = 0, kFinal = kTuned, kMeasure = 2 };

struct Tuning {
  size_t chunk_nbytes = 256 << 10;  // half of an L2 cache of 512 KiB, with both ranks' parts
  size_t eager_nbytes = 8 << 10;
};

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

bool load(const std::string& path, Tuning& tuning) {
  std::ifstream file(path);
  Tuning read;
  if (!(file >> read.chunk_nbytes >> read.eager_nbytes)) return false;
  if (read.chunk_nbytes < 4096 || read.chunk_nbytes > kSlotLargest || read.eager_nbytes > kEagerNbytes) return false;
  tuning = read;
  return true;
}

// Best effort: without a cache the next start measures again.
void save(const std::string& path, const Tuning& tuning) {
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

  // Every rank is between operations when rank 0 changes a size.
  template <class Change>
  void change(Change apply) {
    BenchJob barrier;
    barrier.kind = Kind::kBarrier;
    bench(group_, barrier, interrupt_);
    if (group_.rank() == 0) apply();
    bench(group_, barrier, interrupt_);
  }

 private:
  Group& group_;
  Interrupt interrupt_;
  std::vector<std::byte> buffer_;
};

Tuning measure(Group& group, Header& header, Interrupt interrupt) {
  Bench bench(group, interrupt);
  Tuning best;
  double least = 1e9;
  for (const size_t chunk : {size_t{64} << 10, size_t{128} << 10, size_t{256} << 10, size_t{512} << 10}) {
    bench.change([&] { header.chunk_nbytes = chunk; });
    const double seconds = bench.best_of(5, 2 << 20, 1);
    if (seconds < least) {
      least = seconds;
      best.chunk_nbytes = chunk;
    }
  }
  bench.change([&] { header.chunk_nbytes = best.chunk_nbytes; });
  best.eager_nbytes = 1 << 10;
  for (const size_t size : {size_t{2} << 10, size_t{4} << 10, size_t{8} << 10, size_t{16} << 10}) {
    bench.change([&] { header.eager_nbytes = size; });
    const double eager = bench.best_of(5, size, 20);
    bench.change([&] { header.eager_nbytes = size - 1; });
    const double logged = bench.best_of(5, size, 20);
    if (eager < logged) best.eager_nbytes = size;
  }
  return best;
}

}  // namespace

void tune(Context& context) {
  Group& world = context.world();
  const ControlSegment& control = world.control();
  Header& header = control.header();
  const Interrupt interrupt = context.interrupt();
  const std::string path = cache_file(context, control);
  const bool alone = !world.hosts().several();
  if (world.hosts().leader_here() == world.rank()) {
    Tuning tuning;
    // Ranks that share cores time the scheduler, not the machine; a forced algorithm is not what auto would run.
    const bool can_measure =
        alone && world.size() > 1 && !world.ranks_outnumber_cores() && context.settings().algorithm == "auto";
    const size_t wished = context.settings().chunk_nbytes;
    // On several hosts what is eager must be so on all of them: the defaults.
    const bool known = (alone && load(path, tuning)) || !can_measure || wished != 0;
    // A slot holds it, and it holds a line for each rank.
    const size_t least = std::max<size_t>(4096, 64 * static_cast<size_t>(world.size()));
    if (wished != 0) tuning.chunk_nbytes = std::clamp(round_up(wished, 64), least, kSlotLargest);
    header.chunk_nbytes = tuning.chunk_nbytes;
    header.eager_nbytes = tuning.eager_nbytes;
    header.tuned.store(known ? kFinal : kMeasure, std::memory_order_release);
    world.negotiation().segment().ring_all();
  }
  context.wait_loop().wait_until([&] { return header.tuned.load(std::memory_order_acquire) != kUndecided; },
                                 [] { return false; }, Deadline::after_s(context.timeout_s()), interrupt, true,
                                 [&] { world.throw_if_failed(); });
  if (header.tuned.load(std::memory_order_acquire) == kMeasure) {
    Tuning measured = measure(world, header, interrupt);
    Bench(world, interrupt).change([&] {
      header.chunk_nbytes = measured.chunk_nbytes;
      header.eager_nbytes = measured.eager_nbytes;
      header.tuned.store(kFinal, std::memory_order_release);
      save(path, measured);
    });
    world.forget_counts();
  }
}

}  // namespace rr
