// The engine for kernels that a framework calls from its own threads: without Python and without the GIL.
//
// A kernel knows a process set by its id. The table of what those ids are now is kept by whoever starts and ends jobs
// (ringreduce/job/process_sets.py); kernels that run after shutdown(), or in a forked child, get NotInitializedError.
// Every call blocks until it has its result. There is no asynchronous form: frameworks run other kernels meanwhile on
// other threads, and what belongs together goes in one call.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "base/threads_inside.h"
#include "engine/context.h"
#include "framework/signals.h"
#include "framework/table.h"

namespace rr {

// One collective, in the terms of kernels. The memory of the tensors is the caller's and stays until the call returns.
struct Call {
  int process_set = 0;
  std::string name;  // "" = matched by the order of calls
  Request request;   // without a name; its root is a rank of the world
};

// Where this process is. Ranks of hosts are not known to the core.
struct Position {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
};

struct Failure {
  ErrorCode code = ErrorCode::kNone;
  std::string text;  // "PeerLostError: ...": with the class in front, for frameworks that have only texts
};
Failure failure_of(const std::exception_ptr& error);

// A signal has ended the wait of a kernel. The operations stand: the engine may still read and write their memory.
struct InterruptedCall : Interrupted {
  std::vector<OperationPtr> operations;
  InterruptedCall(const std::string& text, std::vector<OperationPtr> pending)
      : Interrupted(text), operations(std::move(pending)) {}
};

class Calls {
 public:
  Calls();
  ~Calls();
  Calls(const Calls&) = delete;

  // Kernels have no argument to carry this in, so there is one for the process.
  static Calls& of_process();

  // What the ids mean. Threads inside a call go on with the group they have.
  void start(const Position& place);
  // group: null where this rank is no member.
  void enter(int process_set, std::vector<int> ranks, std::weak_ptr<Context> context, std::weak_ptr<Group> group);
  void leave(int process_set);
  void end(const std::string& absence);  // no job from here on; absence: the text of NotInitializedError
  void forget_after_fork(const std::string& absence);
  // Waits until no other thread is inside a call; false when it takes longer. This one may be, in a signal's handler.
  static bool drain(double timeout_s);

  // The operations, finished, in the order of the calls, which are all submitted before the first is waited for. Raises
  // the first error, once nothing here touches the callers' memory any more, for which it waits 60 s. With an
  // interrupt, called now and then while it blocks, that throws Interrupted: InterruptedCall, at once. can_keep:
  // whoever catches InterruptedCall keeps the memory of its operations. Else this rank is lost for all others at an
  // interrupt, and InterruptedCall, which has no operations then, comes when the memory is let go of.
  std::vector<OperationPtr> run(const std::vector<Call>& calls, Interrupt interrupt = nullptr, bool can_keep = true);
  int join(int process_set, Interrupt interrupt = nullptr);  // the rank of the world that joined last
  Position place() const;
  int size(int process_set) const;
  int rank(int process_set) const;  // within the set; raises InvalidArgumentError outside
  bool included(int process_set) const;

  // Whether another thread could call an operation while this one waits, by whose kernel this one is in.
  static bool could_others_call();
  // A kernel of TensorFlow: yes. Sessions come to their operators in any order, and Python may have other threads. One
  // that is about to call a kernel eagerly may have seen that it is the only one: it says so, and takes that back
  // afterwards.
  static void set_alone(bool alone);
  // A kernel of JAX, which runs on any thread, in the order of the Python thread that has called the program: if Python
  // has had other threads when one of it built a program with collectives, which notes that.
  static void note_threads(bool has_others);

  enum class Framework { kNone, kTensorFlow, kJax };
  // A call of this thread by a kernel, to the end of the scope.
  class InKernel {
   public:
    explicit InKernel(Framework framework);
    ~InKernel();
    InKernel(const InKernel&) = delete;

   private:
    Framework before_;
  };

 private:
  struct Entry {
    std::vector<int> ranks;
    std::weak_ptr<Context> context;
    std::weak_ptr<Group> group;
    bool member = false;
  };
  struct Table {  // of one process: a forked child begins another and leaves this one as it is
    std::mutex mutex;
    std::map<int, Entry> entries;
    Position place;
    std::string absence;
  };
  struct Member {  // the group goes first
    std::shared_ptr<Context> context;
    std::shared_ptr<Group> group;
    std::vector<int> ranks;
  };
  using Inside = ThreadsInside<Calls>;
  Entry entry(int process_set, bool needs_job = true) const;
  Member member(int process_set, const char* call) const;
  static OperationPtr submit(const Call& call, const Member& member, bool is_async, Interrupt interrupt);
  // what: that this rank has waited in. outcome: what has become of the operations.
  [[noreturn]] static void interrupted(const Position& here, const std::string& what, const char* by,
                                       const std::string& outcome, std::vector<OperationPtr> operations);
  static void abandon(const Member& member, const OperationPtr& operation, Deadline deadline);

  std::unique_ptr<Table> table_;
  std::vector<std::unique_ptr<Table>> left_;  // the parent's, in a forked child
};

RrTable table_of(Calls& calls);
// That of Calls::of_process(). Never destroyed.
const RrTable& process_table();

}  // namespace rr
