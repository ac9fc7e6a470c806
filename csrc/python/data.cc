// Bindings: the tables that Python reads, of dtypes, knobs, instruction sets and codecs.
#include <pybind11/stl.h>

#include "base/config.h"
#include "data/reduction.h"
#include "python/bindings.h"

namespace rr {

namespace py = pybind11;

void bind_data(py::module_& m) {
  m.def("dtypes", [] {
    std::vector<std::pair<std::string, size_t>> list;
    for (int code = 0; code < kDTypeCount; ++code) {
      const DType dtype = dtype_from_code(code);
      list.emplace_back(name(dtype), itemsize(dtype));
    }
    return list;
  });
  m.def("knobs", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string, std::string, std::string>> list;
    for (const Knob& k : knobs()) list.emplace_back(k.name, k.unit, k.range, k.fallback, k.alias, k.meaning);
    return list;
  });
  m.def("isas", [] {
    std::vector<std::string> names;
    for (const Isa isa : available_isas()) names.emplace_back(kernels(isa).name);
    return names;
  });
  m.attr("WIRE_BLOCK") = kCodecBlock;
  m.def("wires", [] {
    std::vector<std::string> names;
    for (int code = 0; code < kCodecCount; ++code) names.emplace_back(name(codec_from_code(code)));
    return names;
  });
  m.def(
      "wire_round_trip",
      [](const std::string& wire, uintptr_t address, size_t count) {
        const Codec codec = codec_from_name(wire);
        const py::gil_scoped_release release;
        codec_round_trip(kernels("auto"), codec, reinterpret_cast<void*>(address), count);
      },
      py::arg("wire"), py::arg("address"), py::arg("count"));
}

}  // namespace rr
