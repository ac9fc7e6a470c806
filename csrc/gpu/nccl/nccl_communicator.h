// One rank's end of a communicator of NCCL's: no call of it blocks, its errors come back as exceptions, and it can be
// given up at any time, also while kernels of NCCL's wait for a rank that is dead.
//
// NCCL prepares what is asked of such a communicator on threads of its own: after creation, and after every group of
// calls, settled() has to become true before anything else is asked, or recorded in the stream behind it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "gpu/nccl/nccl.h"

namespace rr {

class NcclCommunicator {
 public:
  // Collective over `size` ranks; the device is the thread's current one. where: "rank 1/4", for messages.
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, const NcclUniqueId& id, int rank, int size,
                   std::string where);
  // Collective over the ranks of parent that are not excluded: needs no unique id, and reuses what the parent knows of
  // the machine. The parent outlives this; it is settled and has nothing under way. Needs CommShrink.
  NcclCommunicator(NcclCommunicator& parent, std::vector<int> excluded);
  ~NcclCommunicator() { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const NcclLibrary& library() const { return *library_; }
  ncclComm* handle() const { return state_->handle; }

  // Whether NCCL is ready for more. Throws what has gone wrong since, there or on the devices: PeerLostError if NCCL
  // says that another rank's process or the network has failed, InternalError else, with NCCL's words.
  bool settled();
  // The same for the code that a call has returned; kInProgress is no error.
  void check(NcclResult code, const std::string& call) const;

  // Both end it: nothing else may be called. "" or what went wrong, for the log. Never longer than they say; what NCCL
  // has not done by then it goes on with alone, on a thread that is left to it.
  // Stops whatever is under way.
  std::string abort(double most_s = kAbortS) noexcept;
  // Lets the others finish first, up to drain_s; then as abort().
  std::string close(double drain_s) noexcept;
  static constexpr double kAbortS = 10.0;
  static constexpr double kDrainS = 1.0;

 private:
  struct State {
    ncclComm* handle = nullptr;  // NCCL may write it later than the call that asks for it returns
    std::vector<int> excluded;
    std::vector<std::shared_ptr<State>> shrunk;  // may be written as long as this one has not ended
  };
  std::string end(double drain_s, double abort_s) noexcept;

  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  NcclCommunicator* parent_ = nullptr;  // while it is being shrunk
  std::string where_;
  pid_t owner_;
  int64_t remote_error_ns_ = 0;
  bool ended_ = false;
};

}  // namespace rr
