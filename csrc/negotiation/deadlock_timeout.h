// Whether all ranks of a host wait for each other for ever, where nobody can prove it.
//
// A rank whose only thread waits can call nothing else, so the negotiation can prove a deadlock of such ranks
// (deadlock.cc). Of a rank with several threads another one might call what is missing: TensorFlow's and Keras's pools,
// DDP's completer, the user's own. There time decides: every rank has a thread that waits for an operation that some
// rank has not called, and for RINGREDUCE_VERDICT seconds no rank has called anything, in any group. A rank none of
// whose threads waits is busy elsewhere, with an evaluation, a download or join(), and exempts all. So does one that
// waits for a message, for a GPU, or with a limit of its own: nobody knows what it would do next.
//
// A context sees its own groups only: a process group of torch.distributed is a context of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "negotiation/segment/control_segment.h"

namespace rr {

// Of one rank, in the world's segment. A context has one.
class DeadlockTimeout {
 public:
  // limit_s: RINGREDUCE_VERDICT; 0 = never. clock: of all ranks, in nanoseconds.
  DeadlockTimeout(const ControlSegment& world, int rank, double limit_s, int64_t (*clock)() = now_ns);

  // This rank calls an operation of whichever group. A call that comes with another thread's may not be counted.
  void record_call() const { calls_->store(calls_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

  // A thread that waits, for as long as it does.
  class Waiter {
   public:
    explicit Waiter(DeadlockTimeout& deadlock_timeout) : deadlock_timeout_(deadlock_timeout) {}
    ~Waiter() { deadlock_timeout_.remove(*this); }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    // To be called a few times a second. waits_for: in words, behind "waits "; "" while nobody is missed any more. True
    // once all ranks are found to wait for ever: then the world has failed, and failure_text() says what each waits
    // for.
    bool look(std::string waits_for) { return deadlock_timeout_.look(*this, std::move(waits_for)); }

   private:
    friend class DeadlockTimeout;
    DeadlockTimeout& deadlock_timeout_;
    std::string waits_for_;
    int64_t since_ns_ = 0;  // the first look; 0: none yet
  };

 private:
  bool look(Waiter& waiter, std::string waits_for);
  void remove(const Waiter& waiter);
  bool publish(const Waiter* longest, int64_t now);
  bool conclude(int64_t now);
  bool all_wait(int64_t now) const;
  uint64_t calls_of_all() const;
  std::string describe(int64_t now) const;
  RankWait& line(int rank) const { return world_.wait(rank); }

  const ControlSegment& world_;
  int rank_;
  int64_t limit_ns_;
  int64_t (*clock_)();
  std::atomic<uint64_t>* calls_;

  std::mutex mutex_;
  std::vector<Waiter*> waiters_;  // in the order in which they began
  std::string published_;         // what the segment says of this rank
  uint64_t seen_calls_ = 0;
  int64_t last_look_ns_ = 0;
  int64_t quiet_ns_ = 0;  // that this rank has seen in which all ranks waited and none called anything
};

}  // namespace rr
