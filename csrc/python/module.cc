// The module ringreduce._core: a list of its bindings, and errors to exceptions.
#include "base/errors.h"
#include "python/bindings.h"

#ifndef RR_VERSION
#define RR_VERSION "0.0.0"
#endif

namespace rr {
namespace {

namespace py = pybind11;

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& e) {
    const py::object type = py::module_::import("ringreduce.errors").attr(public_name(code_of(e)));
    PyErr_SetString(type.ptr(), e.what());
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.attr("__version__") = RR_VERSION;
  py::register_exception_translator(translate);
  bind_data(m);
  bind_gpu(m);
  bind_segments(m);
  bind_group(m);
  bind_mpi(m);
  bind_tcp(m);
  bind_framework(m);
  bind_context(m);
  bind_timeline(m);
  bind_watch(m);
}

}  // namespace rr
