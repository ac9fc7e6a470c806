// Threads of ours take no signals.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <thread>
#include <utility>

namespace rr {

inline bool is_main_thread() {
  thread_local const bool is_main = ::gettid() == ::getpid();
  return is_main;
}

// The signals of this thread are blocked for as long as this lives, but for those that an instruction causes: a handler
// that prints where a crash was (Python's faulthandler) still runs.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) ::sigdelset(&all, number);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// A new thread that no signal is delivered to. The kernel may give a process's signal to any thread that does not block
// it. Python then learns of a Ctrl-C only once its main thread comes out of the system call in which it sleeps: of 215
// SIGINTs to a rank in time.sleep(60), on 2 busy cores, 10 went to the engine's thread.
template <typename Task>
std::thread start_thread(Task task) {
  const SignalsBlocked inherited;
  return std::thread(std::move(task));
}

// The same of a thread that is left to its work, which may never end. The future becomes ready when it does, and holds
// what it has thrown. Throws std::system_error where no thread is to be had.
inline std::future<void> start_detached(std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  start_thread(std::move(task)).detach();
  return done;
}

}  // namespace rr
