#include "probe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace rr {

OtherProcess::OtherProcess(std::vector<std::string> words) {
  std::array<char, 4096> program = {};
  check_sys(::readlink("/proc/self/exe", program.data(), program.size() - 1), "readlink /proc/self/exe");
  words.insert(words.begin(), program.data());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int down[2], up[2];
  check_sys(::pipe2(down, O_CLOEXEC), "pipe2");
  to_ = Fd(down[1]);
  const Fd theirs_in(down[0]);
  check_sys(::pipe2(up, O_CLOEXEC), "pipe2");
  from_ = Fd(up[0]);
  const Fd theirs_out(up[1]);
  pid_ = ::fork();
  check_sys(pid_, "fork");
  if (pid_ != 0) return;
  ::dup2(theirs_in.get(), 0);
  ::dup2(theirs_out.get(), 1);
  ::execv(program.data(), arguments.data());
  ::_exit(127);
}

OtherProcess::~OtherProcess() { kill(); }

void OtherProcess::read(void* data, size_t nbytes) const {
  for (size_t done = 0; done < nbytes;) {
    const long got = check_sys(::read(from_.get(), static_cast<char*>(data) + done, nbytes - done), "read");
    if (got == 0) throw Error("the other process has ended early");
    done += static_cast<size_t>(got);
  }
}

std::string OtherProcess::rest() const {
  std::string text;
  std::array<char, 1024> some = {};
  while (const long got = check_sys(::read(from_.get(), some.data(), some.size()), "read")) {
    text.append(some.data(), static_cast<size_t>(got));
  }
  return text;
}

void OtherProcess::write(const void* data, size_t nbytes) const {
  check_sys(::write(to_.get(), data, nbytes), "write");
}

int OtherProcess::status() {
  int status = 0;
  const Deadline deadline = Deadline::after_s(15);
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (deadline.passed()) throw TimeoutError("the other process did not end within 15 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pid_ = -1;
  return status;
}

void OtherProcess::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int probe(const std::string& name) {
  std::vector<Probe> probes;
  add_memory_probes(probes);
  add_event_probes(probes);
  for (const Probe& one : probes) {
    if (name.empty()) std::printf("%s\n", one.name.c_str());
    if (name != one.name) continue;
    try {
      // Not freed: the driver may wait for what has been left on the GPU.
      one.run(*std::make_unique<Rig>().release());
    } catch (const std::exception& error) {
      answer(name, false, error.what());
    }
    ::_exit(0);
  }
  if (!name.empty()) throw InvalidArgumentError("rr_gpu probe: there is no " + name);
  return 0;
}

}  // namespace rr
