// Bindings: the timeline of this process.
#include "recorder/timeline.h"

#include <pybind11/stl.h>

#include <cerrno>

#include "base/never_destroyed.h"
#include "collective/select.h"
#include "data/dtype.h"
#include "python/bindings.h"
#include "python/objects.h"

namespace rr {
namespace {

// By the codes in records.
std::vector<std::string> kind_names() {
#define RR_NAME(id, upper, lower) lower,
  std::vector<std::string> names = {RR_KINDS(RR_NAME)};
#undef RR_NAME
  names.push_back("join");
  return names;
}

std::vector<LiveTrace::Target::KindName> kinds_of_trace() {
#define RR_NAME(id, upper, lower) {lower, upper},
  return {RR_KINDS(RR_NAME)};
#undef RR_NAME
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (int code = 0; code < kOpCount; ++code) names.emplace_back(name(op_from_code(code)));
  return names;
}

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (uint32_t code = 0; code <= static_cast<uint32_t>(Algo::kStaged); ++code) {
    names.emplace_back(name(static_cast<Algo>(code)));
  }
  return names;
}

}  // namespace

namespace {

// UnavailableError, whose cause is an OSError with the system's number, if there is one.
[[noreturn]] void raise(const OutputError& error) {
  const py::object type = py::module_::import("ringreduce.errors").attr("UnavailableError");
  if (error.code == 0) {
    py::set_error(type, error.what());
  } else {
    errno = error.code;
    PyErr_SetFromErrno(PyExc_OSError);
    py::raise_from(type.ptr(), error.what());
  }
  throw py::error_already_set();
}

std::shared_ptr<Recorder>& recorder_of_process() {
  static auto& instance = never_destroyed<std::shared_ptr<Recorder>>(std::make_shared<Recorder>());
  return instance;
}

}  // namespace

std::shared_ptr<Recorder> recorder() { return recorder_of_process(); }

void bind_timeline(py::module_& m) {
  m.def("kinds", kind_names);
  m.def("ops", op_names);
  m.def("algorithms", algorithm_names);
  py::class_<Timeline, std::shared_ptr<Timeline>>(m, "Timeline")
      .def(
          py::init([](const std::string& path, int rank, const std::string& process, int64_t monotonic_ns,
                      int64_t realtime_ns, const std::string& trace, bool mark_cycles) {
            try {
              const py::gil_scoped_release release;
              const LiveTrace::Target target{trace, rank, monotonic_ns, realtime_ns, kinds_of_trace(), mark_cycles};
              return guard_fork(std::make_unique<Timeline>(recorder(), path, process, trace.empty() ? nullptr : &target,
                                                           Log(Settings::from_environment().log_level, rank)));
            } catch (const OutputError& error) {
              raise(error);
            }
          }),
          py::arg("path"), py::arg("rank"), py::arg("process"), py::arg("monotonic_ns"), py::arg("realtime_ns"),
          py::arg("trace") = "", py::arg("mark_cycles") = false)
      .def(
          "stop",
          [](Timeline& timeline, const std::string& reason) {
            const py::gil_scoped_release release;
            return timeline.stop(reason);
          },
          py::arg("reason"));
  // A forked child may have inherited the recorder while a thread that is not there held its locks.
  m.def("renew_recorder", [] {
    never_destroyed<std::shared_ptr<Recorder>>(std::exchange(recorder_of_process(), std::make_shared<Recorder>()));
  });
}

}  // namespace rr
