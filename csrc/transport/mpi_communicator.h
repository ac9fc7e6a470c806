// A communicator of our own: a duplicate of somebody's, whose errors come back as exceptions, and the messages under
// way on it. Links (link.h, mpi_link) are made on top of it; it stays until the last of them has gone.
//
// MPI moves a message only while somebody calls it. A byte counts as pushed once it is copied, so an operation can be
// done here while its last messages still wait: whoever pushes sees to it that progress() is called until it is false.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "transport/mpi_library.h"

namespace rr {

// One message: memory for its bytes, and the request that uses it.
struct MpiMessage {
  explicit MpiMessage(size_t nbytes);
  std::unique_ptr<std::byte, void (*)(std::byte*)> bytes;  // 64-byte aligned
  size_t capacity;                                         // bytes
  bool pending = false;                                    // MPI may still read or write bytes
  MpiHandle request;
  const char* call = "";  // "MPI_Isend", ...: for messages of errors
  int peer = -1;
  int tag = 0;
};

// Thread-safe; calls of all communicators of a library exclude each other. Calls throw PeerLostError where MPI says
// that a process has failed, InternalError with MPI's own text for any other code, and ShutdownError after close() and
// after MPI_Finalize.
class MpiCommunicator {
 public:
  struct Options {
    double timeout_s = 0;             // for all ranks to come; 0 = never
    std::function<void()> interrupt;  // called about every 50 ms while waiting; may throw
  };

  // Collective: duplicates comm, which only has to stay valid during this call. byte and errors_return are MPI_BYTE and
  // MPI_ERRORS_RETURN. Throws TimeoutError, and UnavailableError when MPI is not initialised or not for threads.
  MpiCommunicator(std::shared_ptr<MpiLibrary> library, uintptr_t comm, uintptr_t byte, uintptr_t errors_return,
                  const Options& options);
  // As close(kDrainS).
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MpiThreads threads() const { return threads_; }
  MpiLibrary& library() { return *library_; }

  // Starts a message of the first nbytes (at most INT_MAX) of its memory. synchronous: see MpiLibrary::issend.
  void send(const std::shared_ptr<MpiMessage>& message, size_t nbytes, int peer, int tag, bool synchronous);
  void receive(const std::shared_ptr<MpiMessage>& message, int peer, int tag);
  // True when the message is complete: its memory is the caller's again.
  bool test(const std::shared_ptr<MpiMessage>& message);
  // Gives up a receive. If it cannot be withdrawn at once, the communicator keeps its memory for as long as MPI may
  // write there.
  void withdraw(const std::shared_ptr<MpiMessage>& message) noexcept;

  // Lets MPI work on whatever is sent. True while some of it is on its way.
  bool progress();

  // Waits up to drain_s seconds for what is on its way, then frees the communicator. Not collective here, and never
  // hangs: what a peer does not take in time is left to MPI together with its memory. Touches nothing after
  // MPI_Finalize or in a forked child. Idempotent.
  void close(double drain_s) noexcept;
  static constexpr double kDrainS = 1.0;

 private:
  void check(int code, const char* call) const;
  void check(int code, const MpiMessage& message) const;
  void require_open();
  void start(const std::shared_ptr<MpiMessage>& message, const char* call, int peer, int tag, int code);
  bool complete(MpiMessage& message);
  bool reap();

  std::shared_ptr<MpiLibrary> library_;
  MpiHandle comm_;
  MpiHandle byte_;
  int rank_ = 0;
  int size_ = 1;
  MpiThreads threads_ = MpiThreads::kSingle;
  long owner_;  // the process; a forked child must not call MPI
  // Under the library's mutex.
  bool closed_ = false;
  std::list<std::shared_ptr<MpiMessage>> pending_;  // sends under way, and receives being withdrawn
};

}  // namespace rr
