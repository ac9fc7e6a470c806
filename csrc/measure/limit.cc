#include "measure/limit.h"

#include <atomic>
#include <cstring>
#include <limits>
#include <new>

#include "base/clock.h"
#include "base/errors.h"
#include "collective/plan.h"
#include "data/stream.h"
#include "engine/context.h"
#include "os/bell.h"

namespace rr {
namespace {

using Addresses = std::vector<std::byte*>;  // by rank

Addresses addresses(const Group& group, const Context& context, const TensorView& tensor) {
  MemoryRef ref = context.segments().find(tensor.data, tensor.nbytes());
  Addresses found;
  for (int r = 0; r < group.size(); ++r) {
    ref.region = static_cast<uint32_t>(r);
    found.push_back(ref.uid == 0 ? nullptr : context.segments().address(ref));
    if (found.back() == nullptr) throw InvalidArgumentError("the limit is measured on registered memory");
  }
  return found;
}

// This rank's share of the loads and stores of one call.
class Work {
 public:
  Work(const Group& group, const Context& context, const BenchJob& job)
      : job_(job),
        kernels_(context.kernels()),
        rank_(static_cast<size_t>(group.rank())),
        ranks_(static_cast<size_t>(group.size())),
        srcs_(addresses(group, context, job.src)),
        dsts_(addresses(group, context, job.dst)) {}

  void operator()() const {
    const size_t item = itemsize(job_.src.dtype);
    if (job_.kind == Kind::kAllreduce) {
      const Range mine = segment(job_.src.count, group_size(), static_cast<int>(rank_), 64 / item);
      return reduce(mine, dsts_, mine.begin * item);
    }
    if (job_.kind == Kind::kReduceScatter) {
      return reduce({rank_ * job_.dst.count, (rank_ + 1) * job_.dst.count}, {dsts_[rank_]}, 0);
    }
    if (job_.kind == Kind::kBroadcast) {
      if (rank_ != 0) copy(dsts_[rank_], srcs_[0], job_.src.nbytes());
      return;
    }
    const bool gathers = job_.kind == Kind::kAllgather;
    const size_t part = gathers ? job_.src.nbytes() : job_.src.nbytes() / ranks_;
    for (size_t r = 0; r < ranks_; ++r) {
      copy(dsts_[rank_] + r * part, srcs_[r] + (gathers ? 0 : rank_ * part), part);
    }
  }

 private:
  int group_size() const { return static_cast<int>(ranks_); }

  // As pull.cc copies an output: past the caches where all of it is large.
  void copy(std::byte* dst, const std::byte* src, size_t nbytes) const {
    job_.dst.nbytes() >= kStreamedNbytes ? stream(dst, src, nbytes) : void(std::memcpy(dst, src, nbytes));
  }

  void reduce(Range range, const Addresses& dsts, size_t dst_offset) const {
    std::vector<const void*> from;
    std::vector<void*> to;
    for (const std::byte* src : srcs_) from.push_back(src + range.begin * itemsize(job_.src.dtype));
    for (std::byte* dst : dsts) to.push_back(dst + dst_offset);
    if (range.empty()) return;
    kernels_.reduce(job_.reduction, from.data(), from.size(), to.data(), to.size(), range.count());
  }

  const BenchJob& job_;
  const Kernels& kernels_;
  size_t rank_;
  size_t ranks_;
  Addresses srcs_;
  Addresses dsts_;
};

constexpr double kMostSeconds = 0.2;  // of one_way_latency, where 1000 turns usually take 0.1 to 3 ms
constexpr int kOver = std::numeric_limits<int>::max();

void meet(Group& group, Interrupt interrupt) { group.wait(*group.submit(Request(), interrupt), -1, interrupt); }

}  // namespace

std::vector<double> memory_limit(Group& group, const BenchJob& job, Interrupt interrupt) {
  const Work work(group, group.context(), job);
  const std::vector<std::byte> original(job.src.data, job.src.data + job.src.nbytes());
  std::vector<double> seconds;
  for (int i = 0; i < job.iters; ++i) {
    std::memcpy(job.src.data, original.data(), original.size());
    meet(group, interrupt);
    const int64_t begin = now_ns();
    work();
    seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9);
    meet(group, interrupt);  // nobody rewrites what another still reads
  }
  return seconds;
}

double one_way_latency(Group& group, const BenchJob& job, Interrupt interrupt) {
  using News = std::atomic<int>;
  const Addresses lines = addresses(group, group.context(), job.src);
  const bool takes_part = group.rank() < 2 && group.size() > 1;
  News* mine = nullptr;
  if (takes_part) mine = new (lines[static_cast<size_t>(group.rank())]) News(0);
  meet(group, interrupt);
  double seconds = 0;
  if (takes_part) {
    News& theirs = *reinterpret_cast<News*>(lines[static_cast<size_t>(1 - group.rank())]);
    // Rank 0 ends it early: where others use the cores a turn may take a time slice, and all of them a minute.
    const Deadline deadline = Deadline::after_s(group.rank() == 0 ? kMostSeconds : 10 * kMostSeconds);
    const auto hear = [&](int turn) {
      while (mine->load(std::memory_order_acquire) < turn && !deadline.passed()) {
        if (group.ranks_outnumber_cores()) relax(true);
      }
      return mine->load(std::memory_order_acquire) == turn;
    };
    const int64_t begin = now_ns();
    int turns = 0;
    for (bool goes_on = true; goes_on && turns < job.iters;) {
      ++turns;
      if (group.rank() == 0) theirs.store(turns, std::memory_order_release);
      goes_on = hear(turns);
      if (group.rank() == 1) theirs.store(turns, std::memory_order_release);
    }
    seconds = static_cast<double>(now_ns() - begin) * 1e-9 / turns / 2;
    if (group.rank() == 0) theirs.store(kOver, std::memory_order_release);
  }
  meet(group, interrupt);
  return seconds;
}

}  // namespace rr
