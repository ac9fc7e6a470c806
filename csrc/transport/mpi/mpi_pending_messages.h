// The messages of a communicator that MPI has: which they are, how they end, and how many each peer has been sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "transport/mpi/mpi_errors.h"
#include "transport/mpi/mpi_library.h"
#include "transport/mpi/mpi_message.h"

namespace rr {

// Every call is made under the library's mutex.
class MpiPendingMessages {
 public:
  MpiPendingMessages(MpiLibrary& library, const MpiErrors& errors) : library_(library), errors_(errors) {}
  MpiPendingMessages(const MpiPendingMessages&) = delete;
  MpiPendingMessages& operator=(const MpiPendingMessages&) = delete;
  void count_peers(int size);  // before the first message

  // MPI has been called to send or receive the message, and has answered with this code. Throws, and takes nothing in,
  // for any but 0.
  void add(const MpiMessagePtr& message, MpiMessage::State state, int code, const char* call);
  // Asks MPI to give the receive up. It stays here until MPI has, as MPI may write to its memory until then.
  void cancel(const MpiMessagePtr& message);
  void cancel_receives();
  // Nobody waits for the message that is sent. From until_ns on give_up_abandoned() counts it no more.
  void abandon(MpiMessage& message, int64_t until_ns);
  void give_up_abandoned(int64_t at_ns);
  // Asks MPI what has ended.
  void sweep();
  void sweep_if_stale();
  // What is left is MPI's for ever, with its memory.
  void leave_to_mpi();

  // Throws a failure that nobody has been told of, once.
  void throw_unheard();
  void keep_unheard(const std::exception_ptr& failure);
  void forget_unheard(const MpiMessage& message);  // whoever has the message knows of its failure, or never asks

  bool empty() const { return messages_.empty(); }
  bool is_any_sending() const { return sending_ != 0; }
  bool needs_progress() const { return sending_ + withdrawn_ != 0; }
  const std::vector<uint64_t>& sent() const { return sent_; }  // messages, by peer
  const std::vector<uint64_t>& received() const { return received_; }

 private:
  using State = MpiMessage::State;
  void remove(const MpiMessagePtr& message);
  void ended(const MpiMessagePtr& message, const MpiDone& how);

  MpiLibrary& library_;
  const MpiErrors& errors_;
  std::vector<MpiMessagePtr> messages_;  // each knows its place
  size_t sending_ = 0;                   // of them
  size_t abandoned_ = 0;                 // of those that are sent
  size_t withdrawn_ = 0;
  std::exception_ptr unheard_;  // the first failure of which nobody has been told
  std::vector<uint64_t> sent_;
  std::vector<uint64_t> received_;
  int64_t swept_ns_ = 0;
  bool has_news_ = false;  // a message was started since
  std::vector<MpiHandle> requests_;
  std::vector<MpiDone> done_;
};

}  // namespace rr
