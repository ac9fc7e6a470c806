// Bindings: memory files, registered memory and what a fork does to it.
#include "data/stream.h"
#include "python/bindings.h"
#include "python/objects.h"

namespace rr {

void bind_segments(py::module_& m) {
  m.def(
      "control_nbytes",
      [](int size) { return ControlSegment::nbytes(size, Settings::from_environment().cache_capacity); },
      py::arg("size"));
  m.def(
      "memfd", [](const std::string& label, size_t nbytes) { return create_memfd(label, nbytes).release(); },
      py::arg("label"), py::arg("nbytes"));
  m.def(
      "stream",
      [](uintptr_t dst, uintptr_t src, size_t nbytes) {
        const py::gil_scoped_release release;
        stream(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), nbytes);
      },
      py::arg("dst"), py::arg("src"), py::arg("nbytes"));

  py::class_<PySegment>(m, "Segment", py::buffer_protocol())
      .def(py::init<int, uint64_t, int, int, size_t>(), py::arg("fd"), py::arg("uid"), py::arg("region"),
           py::arg("regions"), py::arg("nbytes"))
      .def_buffer([](PySegment& s) {
        return py::buffer_info(s.segment.own(), 1, "B", 1, {static_cast<py::ssize_t>(s.segment.nbytes())}, {1});
      });

  m.def("before_fork", [] { registry()->before_fork(); });
  m.def("after_fork_in_parent", [] { registry()->after_fork_in_parent(); });
  m.def("after_fork_in_child", [] { registry()->after_fork_in_child(); });
}

}  // namespace rr
