// What the kernel says of a process: whether it runs, waits for a core, sleeps or is stopped.
#pragma once

#include <cstdint>
#include <string>

namespace rr {

int pid_of(int pidfd);  // 0 where the kernel does not say

// What the kernel has counted for a process, of this user or another one. Zeros where it does not say.
struct ProcessTimes {
  int64_t cpu_ns = 0;     // all its threads have run
  int64_t queued_ns = 0;  // its main thread could have run, and had no core
};
ProcessTimes times_of(int pid);
bool is_main_thread_on_cpu(int pid);  // or could be, if it had a core
// False: it ends, or has ended; the kernel takes its memory first, then closes its files, and then tells its pidfd.
bool has_memory(int pid);

// How much of a core the threads of this process use, and how long its main thread waits for one, while it is looked
// at.
class ActivitySample {
 public:
  ActivitySample();
  // In words, such as "uses 98 % of a core", of the time since the sample was begun.
  std::string text() const;

 private:
  int64_t began_ns_;
  ProcessTimes began_;
};

// Why a process does not answer, as far as the kernel says: "is stopped by a debugger". pid 0: unknown.
std::string silence_of(int pid);

}  // namespace rr
