// Bindings: another job's memory, for who looks on.
#include <pybind11/stl.h>

#include "negotiation/segment/segment_view.h"
#include "python/bindings.h"

namespace rr {
namespace {

namespace py = pybind11;

// Texts are another process's memory: whatever is no UTF-8 is replaced.
py::str text(const std::string& bytes) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

const char* name_of(Attendance attendance) {
  switch (attendance) {
    case Attendance::kAbsent:
      return "absent";
    case Attendance::kPresent:
      return "present";
    case Attendance::kShutDown:
    case Attendance::kClosed:
      return "left";
    case Attendance::kRemoved:
      return "removed";
  }
  return "absent";
}

py::dict as_dict(const SegmentView::Rank& rank) {
  py::dict stats;
  for (const auto& [name, value] : rank.stats) stats[name] = value;
  py::list links;
  for (const SegmentView::LinkTo& link : rank.links) {
    links.append(
        py::dict(py::arg("host") = link.host, py::arg("nbytes") = link.nbytes, py::arg("busy_s") = link.busy_s));
  }
  py::object wait = py::none();
  if (rank.wait) {
    wait = py::dict(py::arg("kind") = text(rank.wait->kind), py::arg("text") = text(rank.wait->text),
                    py::arg("missing") = rank.wait->missing);
  }
  return py::dict(py::arg("host") = rank.host, py::arg("hostname") = text(rank.hostname), py::arg("age_s") = rank.age_s,
                  py::arg("pid") = rank.pid, py::arg("job_rank") = rank.job_rank,
                  py::arg("attendance") = name_of(rank.attendance), py::arg("has_joined") = rank.has_joined,
                  py::arg("cause") = text(rank.cause), py::arg("wait") = wait, py::arg("waited_s") = rank.waited_s,
                  py::arg("late_s") = rank.late_s, py::arg("seen_late_s") = rank.seen_late_s, py::arg("stats") = stats,
                  py::arg("links") = links);
}

}  // namespace

void bind_watch(py::module_& m) {
  py::class_<SegmentView>(m, "SegmentView")
      .def(py::init<int>(), py::arg("fd"))
      .def_property_readonly("size", &SegmentView::size)
      .def_property_readonly("hosts", &SegmentView::hosts)
      .def_property_readonly("host", &SegmentView::host)
      .def_property_readonly("context", [](const SegmentView& view) { return text(view.context()); })
      .def("read", [](SegmentView& view) {
        const SegmentView::Snapshot snapshot = view.read();
        py::list ranks;
        for (const SegmentView::Rank& rank : snapshot.ranks) ranks.append(as_dict(rank));
        return py::dict(py::arg("sampled_s") = snapshot.sampled_s, py::arg("unsampled_s") = snapshot.unsampled_s,
                        py::arg("late") = text(snapshot.late), py::arg("failure") = text(snapshot.failure),
                        py::arg("ranks") = ranks);
      });
}

}  // namespace rr
