// What this rank has called in a group, and whether by several threads.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include "planner/operation.h"

namespace rr {

// "allreduce 'loss' #12", without the end of a long name.
std::string called_shortly(Kind kind, const std::string& name, uint64_t number);

class CallRecord {
 public:
  // Return the call's number, from 0 on.
  uint64_t record(Kind kind, const std::string* name);
  uint64_t record_message(const std::string& what) {
    message_ = what;
    message_number_ = count_;
    return count_++;
  }
  uint64_t count() const { return count_; }
  // The last call that was no message, as called_shortly().
  std::string last() const { return called_shortly(kind_, name_, number_); }
  // The last call, a message too: "recv from rank 1 #3".
  std::string last_of_all() const {
    const bool is_message = !message_.empty() && message_number_ + 1 == count_;
    return is_message ? message_ + " #" + std::to_string(message_number_) : last();
  }
  void restart() { count_ = 0; }  // numbers begin at 0 again

  // Several threads of this rank call, and no wait of one of them is told to the others any more as that of the only
  // one.
  bool has_many_threads() const { return many_threads_; }
  void set_many_threads() { many_threads_ = true; }
  // A thread other than the device queue's calls or waits, perhaps what the queue's thread will submit.
  void record_caller() {
    if (only_caller_ != std::this_thread::get_id()) record_other_caller();
  }
  bool has_many_callers() const { return many_callers_; }

 private:
  void record_other_caller();

  uint64_t count_ = 0;
  Kind kind_ = Kind::kBarrier;
  std::string name_;
  uint64_t number_ = 0;
  std::string message_;  // the last one
  uint64_t message_number_ = 0;
  bool many_threads_ = false;
  std::thread::id only_caller_;
  bool many_callers_ = false;
};

}  // namespace rr
