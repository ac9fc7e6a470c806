// Bindings: what kernels of frameworks may call, and which process sets they find.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/calls.h"
#include "framework/jax.h"
#include "framework/table.h"
#include "python_calls.h"

namespace rr {

inline void bind_framework(py::module_& m) {
  m.def("framework_table", [] { return reinterpret_cast<uintptr_t>(&process_table()); });
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
        return Calls::of_process().drain(timeout);
      },
      py::arg("timeout"));
  m.def(
      "framework_forget_after_fork", [](const std::string& absence) { Calls::of_process().forget_after_fork(absence); },
      py::arg("absence"));
}

}  // namespace rr
