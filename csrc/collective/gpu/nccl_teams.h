// The communicators of NCCL's that a group uses: one for each set of members that has worked together, made by these
// when they first do. Usually there is one; ranks that have joined make others necessary.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "collective/algorithm.h"
#include "collective/gpu/scratch.h"
#include "gpu/nccl/nccl_communicator.h"

namespace rr {

class NcclTeams {
 public:
  NcclTeams(std::shared_ptr<const NcclLibrary> library, Device& device, const Log& log, std::string where);
  ~NcclTeams();

  Device& device() const { return device_; }
  WorkStream work_stream() const { return work_stream_; }  // of this group alone
  // The team's communicator, null while it is being made. Collective: every member calls it, again and again, as part
  // of the same entry of the log, until it is there. The unique id travels over the team's links.
  NcclCommunicator* communicator(const Team& team);
  bool has(const Team& team) const { return entries_.count(team.members) != 0; }
  // Shared by all operations, which go one after the other in the work stream.
  std::shared_ptr<std::byte> scratch(size_t nbytes) { return scratch_.get(nbytes); }
  // An operation that was under way has no end: kernels of NCCL's may wait for a rank that is dead. Ends them all.
  void abort();
  // At the group's end. Who is not done with the others within drain_s seconds ends by itself.
  void close(double drain_s = NcclCommunicator::kDrainS);
  // Whether NCCL prepares something, which rings no bell.
  bool must_poll() const { return preparing_.load(std::memory_order_relaxed) != 0; }
  // Whether an operation is under way.
  bool is_at_work() const { return operations_.load(std::memory_order_relaxed) != 0; }
  bool is_alone() const { return operations_.load(std::memory_order_relaxed) == 1; }  // asked by an operation
  void begin() {
    operations_.fetch_add(1, std::memory_order_relaxed);
    device_.begin_waiting_for_peers();
  }
  void end() {
    device_.end_waiting_for_peers();
    operations_.fetch_sub(1, std::memory_order_relaxed);
  }
  void begin_preparing() { preparing_.fetch_add(1, std::memory_order_relaxed); }
  void end_preparing() { preparing_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  class Meeting;
  struct Entry {
    std::unique_ptr<Meeting> meeting;
    std::unique_ptr<NcclCommunicator> communicator;
    bool ready = false;
  };
  std::unique_ptr<NcclCommunicator> shrunk(const std::vector<int>& members);
  void note(const std::string& text);

  std::shared_ptr<const NcclLibrary> library_;
  Device& device_;
  const WorkStream work_stream_;
  bool keeps_work_stream_ = false;  // for good: a communicator may have left kernels in it, or it has been given back
  ScratchMemory scratch_;
  const Log& log_;
  std::string where_;
  std::map<std::vector<int>, Entry> entries_;  // by members
  std::atomic<int> operations_{0};
  std::atomic<int> preparing_{0};
};

}  // namespace rr
