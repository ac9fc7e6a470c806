// Signals that come while a kernel waits.
//
// Python runs a signal's handler on the main thread, once that is back in Python. While TensorFlow runs a function or a
// session, it is not: it waits for kernels on other threads. So these look by themselves whether their wait is to end.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace rr {

// A wait that a signal has ended.
struct Interrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What Python knows of its handlers. Called without the GIL; null where there is no Python.
struct SignalHandlers {
  bool (*run_and_raise)();          // on the main thread: runs pending ones; true when one has raised, which is kept
  bool (*interrupts_by_raising)();  // whether that of SIGINT is the one that raises KeyboardInterrupt
  bool (*is_interrupt_pending)();   // on the main thread: that it is, and will run when Python goes on
};

// From now on signals are noticed, where they have handlers, which run as before.
void watch_signals(const SignalHandlers& handlers);

// A wait of this thread, from here to the end of the scope.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;

  // Throws Interrupted where the wait of this thread is to end: on the main thread when a handler has raised; elsewhere
  // on SIGINT when its handler would raise KeyboardInterrupt, and 10 s after SIGINT or SIGTERM with any other handler,
  // which may want nothing but to be remembered when the step is over, or at a second such signal. What ends one wait
  // ends all that were under way. An Interrupt of the engine.
  static void look();
  // The same of a thread that runs no handlers, as nothing could raise their exceptions afterwards: Python runs them
  // when the call has returned.
  static void look_outside_python();

 private:
  static constexpr int kCount = 2;
  uint32_t seen_[kCount];
  int64_t first_ns_[kCount] = {};  // when the first of them came in this wait; 0: none has
  uint32_t ended_;
  SignalWatch* outer_;
};

}  // namespace rr
