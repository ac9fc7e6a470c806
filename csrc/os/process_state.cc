#include "os/process_state.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/clock.h"
#include "base/text.h"

namespace rr {
namespace {

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// proc(5): the letter behind the command's name, which may have brackets of its own. 0: there is no such process.
char state_of(int pid) {
  const std::string text = contents_of("/proc/" + std::to_string(pid) + "/stat");
  const size_t end_of_name = text.rfind(')');
  return end_of_name == std::string::npos || end_of_name + 2 >= text.size() ? '\0' : text[end_of_name + 2];
}

}  // namespace

int pid_of(int pidfd) {
  const std::string text = contents_of("/proc/self/fdinfo/" + std::to_string(pidfd));
  const size_t at = text.find("\nPid:");
  int pid = 0;
  if (at == std::string::npos || std::sscanf(text.c_str() + at, "\nPid: %d", &pid) != 1) return 0;
  return pid < 0 ? 0 : pid;  // -1: it has ended
}

ProcessTimes times_of(int pid) {
  ProcessTimes times;
  clockid_t clock;
  timespec used = {};
  if (::clock_getcpuclockid(pid, &clock) == 0 && ::clock_gettime(clock, &used) == 0)
    times.cpu_ns = int64_t{used.tv_sec} * 1000000000 + used.tv_nsec;
  std::ifstream file("/proc/" + std::to_string(pid) + "/schedstat");
  int64_t ran_ns = 0;
  int64_t queued_ns = 0;
  if (file >> ran_ns >> queued_ns) times.queued_ns = queued_ns;
  return times;
}

bool is_main_thread_on_cpu(int pid) { return state_of(pid) == 'R'; }

// proc(5): the first number of statm is the size of the process's memory.
bool has_memory(int pid) {
  int64_t pages = 0;
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  return file >> pages && pages > 0;
}

ActivitySample::ActivitySample() : began_ns_(now_ns()), began_(times_of(::getpid())) {}

std::string ActivitySample::text() const {
  constexpr int kMuch = 20;  // percent of the time without a core: that is why it is late
  const int64_t looked_ns = now_ns() - began_ns_;
  const ProcessTimes times = times_of(::getpid());
  const int used = percent(times.cpu_ns - began_.cpu_ns, looked_ns);
  const int queued = percent(times.queued_ns - began_.queued_ns, looked_ns);
  std::string text = "uses " + std::to_string(used) + " % of a core";
  if (queued >= kMuch)
    text += ", and its main thread waits for one " + std::to_string(queued) + " % of the time: others run there";
  return text;
}

std::string silence_of(int pid) {
  if (pid <= 0) return "does not answer";
  switch (state_of(pid)) {
    case 'T':
      return "is stopped, by SIGSTOP or the like";
    case 't':
      return "is stopped by a debugger";
    case 'D':
      return "is in an uninterruptible wait, for a disk or a network file system, and does not answer";
    case 'Z':
    case 'X':
    case '\0':
      return "has ended";
    default:
      return "is there, but does not answer";
  }
}

}  // namespace rr
