// Bindings: what kernels of frameworks may call, and which process sets they find.
#include <pybind11/stl.h>

#include "base/never_destroyed.h"
#include "framework/calls.h"
#include "framework/jax.h"
#include "os/thread.h"
#include "python/bindings.h"
#include "python/objects.h"

namespace rr {
namespace {

// What a signal's handler has raised while a kernel ran on the main thread. It cannot pass through the framework, so it
// is kept for whoever gets the kernel's error.
std::unique_ptr<py::error_already_set>& raised_by_handler() {
  static auto& kept = never_destroyed<std::unique_ptr<py::error_already_set>>();
  return kept;
}

bool run_signal_handlers() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return false;
  raised_by_handler() = std::make_unique<py::error_already_set>();
  return true;
}

// On the main thread, whose handler it was: another thread's kernel may end for the same signal, and fail first.
void raise_of_handler() {
  if (!is_main_thread()) return;
  if (const auto raised = std::move(raised_by_handler()); raised != nullptr) throw *raised;
}

bool is_ctrl_c_an_exception() {
  if (Py_IsInitialized() == 0) return false;
  const py::gil_scoped_acquire gil;
  const py::module_ signal = py::module_::import("_signal");  // calls no Python, which would run the handler here
  return signal.attr("getsignal")(SIGINT).is(signal.attr("default_int_handler"));
}

bool is_ctrl_c_pending() {
  if (!is_ctrl_c_an_exception()) return false;
  const py::gil_scoped_acquire gil;
  if (PyOS_InterruptOccurred() == 0) return false;
  PyErr_SetInterrupt();  // the question has taken it away
  return true;
}

constexpr SignalHandlers kPythonsHandlers = {run_signal_handlers, is_ctrl_c_an_exception, is_ctrl_c_pending};

}  // namespace

void bind_framework(py::module_& m) {
  m.def("framework_table", [] {
    watch_signals(kPythonsHandlers);
    return reinterpret_cast<uintptr_t>(&process_table());
  });
  m.def("framework_raise", &raise_of_handler);
  m.def("framework_begin_eager", [] { Calls::set_alone(!has_other_python_threads()); });
  m.def("framework_end_eager", [] { Calls::set_alone(false); });
  m.def("framework_note_threads", [] { Calls::note_threads(has_other_python_threads(ThreadsInJax::kCount)); });
  m.def(
      "framework_start",
      [](int rank, int size, int local_rank, int local_size) {
        Calls::of_process().start({rank, size, local_rank, local_size});
      },
      py::arg("rank"), py::arg("size"), py::arg("local_rank"), py::arg("local_size"));
  m.def(
      "framework_enter",
      [](int process_set, std::vector<int> ranks, const std::optional<PyGroup>& group) {
        if (!group) return Calls::of_process().enter(process_set, std::move(ranks), {}, {});
        Calls::of_process().enter(process_set, std::move(ranks), group->context, group->group);
      },
      py::arg("process_set"), py::arg("ranks"), py::arg("group"));
  // As jax.ffi.register_ffi_target() takes them.
  m.def("xla_handlers", [] {
    watch_signals(kPythonsHandlers);
    py::dict capsules;
    for (const XlaHandler& item : xla_handlers()) {
      void* address = reinterpret_cast<void*>(item.handler);
      capsules[item.name] = py::reinterpret_steal<py::object>(PyCapsule_New(address, nullptr, nullptr));
    }
    return capsules;
  });
  m.def("framework_leave", [](int process_set) { Calls::of_process().leave(process_set); }, py::arg("process_set"));
  m.def("framework_end", [](const std::string& absence) { Calls::of_process().end(absence); }, py::arg("absence"));
  m.def(
      "framework_drain",
      [](double timeout) {
        const py::gil_scoped_release release;
        return Calls::drain(timeout);
      },
      py::arg("timeout"));
  m.def(
      "framework_forget_after_fork", [](const std::string& absence) { Calls::of_process().forget_after_fork(absence); },
      py::arg("absence"));
}

}  // namespace rr
