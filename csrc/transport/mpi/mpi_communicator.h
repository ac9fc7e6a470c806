// A communicator of our own: a duplicate of somebody's, whose errors come back as exceptions, and the messages under
// way on it. Links (link.h, mpi_link) are made on top of it; it stays until the last of them has gone.
//
// MPI moves a message only while somebody calls it. A byte counts as pushed once it is copied, so an operation can be
// done here while its last messages still wait: whoever pushes sees to it that progress() is called until it is false.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "transport/mpi/mpi_errors.h"
#include "transport/mpi/mpi_library.h"
#include "transport/mpi/mpi_message.h"
#include "transport/mpi/mpi_pending_messages.h"
#include "transport/network.h"

namespace rr {

// The tags of a job's messages, for each group those of its links and that of its GPUs. Small ones: MPI promises no
// more than kTagPromised.
inline constexpr int kTagPromised = 32767;
constexpr int device_tag(int group) { return group * (kChannels + 2) + kChannels + 1; }
constexpr int link_tag(int channel) { return channel + group_of(channel); }
constexpr int most_group(int tag_ub) { return (tag_ub - (kChannels + 1)) / (kChannels + 2); }  // the highest id

// Thread-safe; calls of all communicators of a library exclude each other. Calls throw PeerLostError where MPI says
// that a process has failed, InternalError with MPI's own text for any other code, and ShutdownError after close() and
// after MPI_Finalize.
class MpiCommunicator {
 public:
  // Collective: duplicates comm, which is not needed afterwards. byte and errors_return are MPI_BYTE and
  // MPI_ERRORS_RETURN. Waits timeout_s for the other ranks (0 = for ever) and calls interrupt, which may throw, now and
  // then. tag_ub: the library's highest tag. Throws TimeoutError, and UnavailableError when MPI is not initialised, or
  // for one thread only.
  MpiCommunicator(std::shared_ptr<MpiLibrary> library, uintptr_t comm, uintptr_t byte, uintptr_t errors_return,
                  double timeout_s, void (*interrupt)(), int tag_ub = kTagPromised);
  ~MpiCommunicator() { close(kDrainS); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  MpiLibrary& library() const { return *library_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int tag_ub() const { return tag_ub_; }
  MpiThreads threads() const { return threads_; }

  // Starts a message of the first nbytes of its memory. synchronous: it is complete once the peer has begun to receive.
  void send(const MpiMessagePtr& message, size_t nbytes, int peer, int tag, bool synchronous);
  void receive(const MpiMessagePtr& message, int peer, int tag);
  // True when MPI does not have the message (any more): its memory is the caller's. Throws for one that has failed,
  // each time, and for no other.
  bool test(const MpiMessagePtr& message);
  // Gives up a receive. If it cannot be withdrawn at once, its memory is kept for as long as MPI may write there.
  void withdraw(const MpiMessagePtr& message) noexcept;
  // Whoever sent the message waits for it no more. For kDrainS progress() still says that it is on its way; a peer that
  // takes it later gets it, as far as MPI brings it there without that.
  void abandon(const MpiMessagePtr& message) noexcept;

  // Lets MPI work on all that is sent. True while some of it is on its way. Throws the first failure of a message that
  // nobody has tested since.
  bool progress();

  // Takes back what is to be received, waits up to drain_s seconds for what is on its way and for the other ranks to
  // come here too, then frees the communicator. Never hangs: what no peer takes in time is left to MPI, with its
  // memory. Touches nothing after MPI_Finalize or in a forked child. Does nothing twice.
  //
  // A communicator for which this rank has been sent more than it has received is not freed: MPI gives a freed one's
  // context id to the next, and MPICH 5.0.2 then delivers the old one's messages there.
  void close(double drain_s) noexcept;
  static constexpr double kDrainS = 1.0;

 private:
  void require_open() const;
  void duplicate(const MpiHandle& comm, double timeout_s, void (*interrupt)());
  // True when no message of the communicator is under way any more, or waits for this rank.
  bool drain(std::unique_lock<std::mutex>& lock, double drain_s);

  std::shared_ptr<MpiLibrary> library_;
  MpiErrors errors_;
  MpiHandle comm_;
  MpiHandle byte_;
  const int tag_ub_;
  int rank_ = 0;
  int size_ = 1;
  MpiThreads threads_ = MpiThreads::kSingle;
  pid_t owner_;
  // Under the library's mutex.
  bool closed_ = false;
  MpiPendingMessages pending_;
};

}  // namespace rr
