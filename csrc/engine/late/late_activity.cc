#include "engine/late/late_activity.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "engine/group/group.h"
#include "engine/peer_watch.h"

namespace rr {
namespace {
constexpr int64_t kLatelyNs = 5'000'000'000;  // of looks at a late rank: half of them is forgotten then
constexpr size_t kLooksMost = 4;              // at late ranks, each time: a look reads a file of /proc
}  // namespace

LateActivity::LateActivity(const Group& world, PeerWatch& peers)
    : world_(world),
      peers_(peers),
      doing_(static_cast<size_t>(world.size())),
      pids_(static_cast<size_t>(world.size())) {}

int LateActivity::pid_of(int rank) {
  int& pid = pids_[static_cast<size_t>(rank)];
  if (pid == 0) pid = rank == world_.rank() ? ::getpid() : peers_.pid_of(rank);
  return pid;
}

bool LateActivity::look(const std::vector<LateRanks::Late>& late_ranks) {
  bool is_any_new = false;
  size_t looks = 0;
  for (const LateRanks::Late& late : late_ranks) {
    if (!world_.hosts().is_here(late.rank)) continue;
    const int pid = pid_of(late.rank);
    if (pid == 0 || ++looks > kLooksMost) continue;
    const ProcessTimes times = times_of(pid);
    const int64_t now = now_ns();
    Doing& doing = doing_[static_cast<size_t>(late.rank)];
    if (doing.operation == late.operation) {
      doing.looked_for_ns += now - doing.looked_ns;
      doing.sums.cpu_ns += times.cpu_ns - doing.times.cpu_ns;
      doing.sums.queued_ns += times.queued_ns - doing.times.queued_ns;
    } else {
      is_any_new = true;
    }
    if (doing.looked_for_ns > kLatelyNs) {
      doing.looked_for_ns /= 2;
      doing.sums = {doing.sums.cpu_ns / 2, doing.sums.queued_ns / 2};
    }
    doing.operation = late.operation;
    doing.looked_ns = now;
    doing.times = times;
  }
  return is_any_new;
}

std::string LateActivity::text(int rank) const {
  constexpr int kQueued = 25;  // percent of the time: that is why it is late
  constexpr int kOnCpu = 50;
  const Doing& doing = doing_[static_cast<size_t>(rank)];
  if (doing.looked_for_ns == 0) return "what it did meanwhile was not seen";
  const int used = percent(doing.sums.cpu_ns, doing.looked_for_ns);
  const int queued = percent(doing.sums.queued_ns, doing.looked_for_ns);
  const std::string core = std::to_string(used) + " % of a core";
  if (queued >= kQueued) {
    return "its cores are taken: meanwhile it used " + core + ", and waited for one " + std::to_string(queued) +
           " % of the time";
  }
  if (used >= kOnCpu) return "it was on CPU meanwhile (" + core + ")";
  return "meanwhile it waited itself, for input, a disk, a lock or a device (" + core + ")";
}

}  // namespace rr
