// The objects that Python holds, and calls that give up the GIL.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "base/text.h"
#include "base/threads_inside.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"
#include "framework/calls.h"
#include "python/memory.h"

namespace rr {

inline void interrupt() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Whether a thread without the GIL may ask for it. One that does so while the interpreter ends is ended by force.
inline bool can_take_gil() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

// Ended without the GIL. The end of a group, a communicator or a link over MPI takes the mutex of the MPI library,
// whose holder may want the GIL: MPI calls back into Python for a user's own operations. The last owner may be a thread
// without the GIL, such as a framework's.
template <class T>
std::shared_ptr<T> ending_without_gil(std::shared_ptr<T> object) {
  T* item = object.get();
  return std::shared_ptr<T>(item, [owner = std::move(object)](T*) mutable {
    std::optional<py::gil_scoped_release> release;
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) release.emplace();
    owner.reset();
  });
}

// A forked child inherits the objects but neither the engine thread nor the control segments, so it only forgets them.
template <class T>
std::shared_ptr<T> guard_fork(std::unique_ptr<T> object) {
  const pid_t owner = ::getpid();
  return ending_without_gil(std::shared_ptr<T>(object.release(), [owner](T* item) {
    if (::getpid() == owner) std::unique_ptr<T>(item).reset();
  }));
}

// A call without the GIL. When an interpreter ends, a thread that wants the GIL back is ended by force, inside whatever
// C++ frame it is in, which ends the process with SIGABRT. So shutdown(), which an exiting process calls while threads
// may still get the GIL, waits for those that are in here; and once it has begun, calls keep the GIL: they no longer
// block.
class WithoutGil {
 public:
  explicit WithoutGil(const Context& context) {
    if (context.is_shut_down()) return;
    inside_.emplace();
    released_.emplace();
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  static void forget_after_fork() { Inside::forget_after_fork(); }

  // Whether this thread is inside a call from Python, which has given up the GIL.
  static bool is_inside() { return Inside::has_own(); }

  // The GIL is not held. A signal's handler may call this from inside a call of its own thread.
  static void await_others() {
    constexpr double kPatienceS = 5;  // they have been told to leave, and look around every 0.1 s at the latest
    Inside::await_others(kPatienceS);
  }

 private:
  using Inside = ThreadsInside<WithoutGil>;
  std::optional<Inside> inside_;  // left once the GIL is back
  std::optional<py::gil_scoped_release> released_;
};

// Whether a thread that is in Python code will never call an operation: it feeds or empties the queues of a
// DataLoader's workers, or draws a progress bar. One that waits for such a queue by itself may call next. frame: the
// innermost one.
inline bool never_calls(py::object frame) {
  constexpr std::pair<std::string_view, std::string_view> kKnown[] = {{"/multiprocessing/queues.py", "_feed"},
                                                                      {"/_utils/pin_memory.py", "_pin_memory_loop"},
                                                                      {"/tqdm/_monitor.py", "run"}};
  for (; !frame.is_none(); frame = frame.attr("f_back")) {
    const auto code = frame.attr("f_code");
    const auto file = code.attr("co_filename").cast<std::string>();
    for (const auto& [known, function] : kKnown) {
      const bool is_file =
          file.size() >= known.size() && file.compare(file.size() - known.size(), known.size(), known) == 0;
      if (is_file && code.attr("co_name").cast<std::string>() == function) return true;
    }
  }
  return false;
}

// Whether a thread is in JAX's code, where it waits for a program, whose callbacks call meanwhile, or builds one.
inline bool is_in_jax(const py::object& frame) {
  return frame.attr("f_code").attr("co_filename").cast<std::string>().find("/jax/_src/") != std::string::npos;
}

enum class ThreadsInJax { kCount, kDoNot };

// Whether another thread than the calling one is in Python code, or has called from there: it may call an operation
// next. Threads of a library that have no Python frame now, as idle ones of autograd, are started by one that has. With
// the GIL.
inline bool has_other_python_threads(ThreadsInJax in_jax = ThreadsInJax::kDoNot) {
  try {
    const unsigned long own = PyThread_get_thread_ident();
    for (const auto& [thread, value] : py::dict(py::module_::import("sys").attr("_current_frames")())) {
      if (thread.cast<unsigned long>() == own) continue;
      const auto frame = py::reinterpret_borrow<py::object>(value);
      if (in_jax == ThreadsInJax::kDoNot && is_in_jax(frame)) continue;
      if (!never_calls(frame)) return true;
    }
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

// Likewise, of a thread that waits in a call, without the GIL. A kernel's is not asked to take the GIL, whose holder
// may wait for the kernel: see Calls::could_others_call().
inline bool has_other_threads() {
  if (!WithoutGil::is_inside()) return Calls::could_others_call();
  if (!can_take_gil()) return true;
  const py::gil_scoped_acquire gil;
  return has_other_python_threads();
}

struct PyOutput {
  OperationPtr operation;
};

struct PyGroup {
  std::shared_ptr<Context> context;
  std::shared_ptr<Group> group;
  // With the GIL. Without it another thread may remove the group: hold() it before.
  Group& get() const { return *hold(); }
  std::shared_ptr<Group> hold() const {
    if (group == nullptr) throw InvalidArgumentError("the group has been removed");
    return group;
  }
};

// Of host memory: an operation of the group. Of GPU memory: one of the queue, which submits it to the group later.
struct PyWork {
  PyGroup group;
  OperationPtr operation;
  DeviceOperationPtr device;

  DeviceQueue& queue() const { return group.context->gpu().queue(); }
  void wait(std::optional<double> timeout) const {
    if (timeout && std::isnan(*timeout)) throw InvalidArgumentError("timeout=nan: seconds or None are expected");
    bool in_time = true;
    {
      const WithoutGil unlocked(*group.context);
      const double timeout_s = timeout ? std::max(*timeout, 0.0) : -1.0;  // below 0: no limit
      in_time = device != nullptr ? queue().wait(*device, timeout_s, interrupt)
                                  : group.get().wait(*operation, timeout_s, interrupt);
    }
    trash().empty();
    if (in_time) return;
    const OperationPtr pending = inner();
    throw TimeoutError(pending == nullptr ? "the operation is still pending after " + seconds_text(*timeout) +
                                                " s: its stream has not come to it"
                                          : group.get().pending_text(*pending, *timeout));
  }
  // For a synchronous call that an exception has ended: from here on its arrays are the caller's again.
  void withdraw() const {
    {
      const WithoutGil unlocked(*group.context);
      device != nullptr ? queue().withdraw(*device, interrupt) : group.get().withdraw(*operation, interrupt);
    }
    trash().empty();
  }
  void wait_or_withdraw() const {
    try {
      wait(std::nullopt);
    } catch (const Error&) {  // the operation's own, or the group's, which has ended the operation
      throw;
    } catch (...) {
      withdraw();
      throw;
    }
  }
  bool done() const {
    const WithoutGil unlocked(*group.context);
    return device != nullptr ? queue().done(*device) : group.get().poll(*operation);
  }
  // Null before a stream has come to it.
  OperationPtr inner() const { return device != nullptr ? queue().inner(*device) : operation; }
};

struct PySegment {
  std::shared_ptr<SegmentRegistry> owner = registry();
  Segment segment;
  pid_t creator = ::getpid();
  PySegment(int fd, uint64_t uid, int region, int regions, size_t nbytes) : segment(fd, uid, region, regions, nbytes) {
    owner->add(&segment);
  }
  ~PySegment() {
    // In a forked child the registry is of no use, and may have been copied while another thread held its lock.
    if (::getpid() == creator) owner->remove(&segment);
  }
};

// Memory of a GPU for as long as Python wants it: of its own, or the result of an operation.
struct PyDeviceMemory {
  std::shared_ptr<Device> device;
  std::shared_ptr<void> owner;
  std::byte* address = nullptr;
  size_t nbytes = 0;

  // The driver waits for the GPU when memory is given back, and the GPU may wait for a thread that wants the GIL.
  ~PyDeviceMemory() {
    if (owner == nullptr) return;  // moved from
    const py::gil_scoped_release release;
    owner.reset();
    device->free_released();
    device.reset();  // perhaps the last reference: it may wait, too
  }
  PyDeviceMemory(std::shared_ptr<Device> its_device, std::shared_ptr<void> holder, std::byte* at, size_t size)
      : device(std::move(its_device)), owner(std::move(holder)), address(at), nbytes(size) {}
  PyDeviceMemory(PyDeviceMemory&&) = default;
  PyDeviceMemory(const PyDeviceMemory&) = delete;

  py::dict interface() const {
    py::dict fields;
    fields["shape"] = py::make_tuple(nbytes);
    fields["typestr"] = "|u1";
    fields["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(address), false);
    fields["strides"] = py::none();
    fields["version"] = 3;
    fields["stream"] = py::none();  // nothing to wait for: whoever got this has waited
    return fields;
  }
};

}  // namespace rr
