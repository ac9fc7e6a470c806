// Bindings: memory of a GPU, ours as Python sees it and others' that comes by DLPack.
#include <pybind11/stl.h>

#include "collective/gpu/gpu_path.h"
#include "gpu/nccl/nccl.h"
#include "gpu/survey.h"
#include "python/bindings.h"
#include "python/objects.h"

namespace rr {
namespace {

// DLPack's structures, as dlpack.h has them since version 0.2.
struct DlTensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t type_code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* manager;
  void (*deleter)(DlManagedTensor*);
};

// What a capsule of __dlpack__() has, taken over. Its deleter runs with the GIL.
class PyDlpack {
 public:
  explicit PyDlpack(py::capsule capsule) {
    if (std::string(capsule.name() == nullptr ? "" : capsule.name()) != "dltensor") {
      throw InvalidArgumentError("not a capsule of __dlpack__(), or one that has been used");
    }
    managed_.reset(capsule.get_pointer<DlManagedTensor>());
    capsule.set_name("used_dltensor");
  }
  const DlTensor& tensor() const { return managed_->tensor; }
  uintptr_t address() const {
    return reinterpret_cast<uintptr_t>(tensor().data) + static_cast<uintptr_t>(tensor().byte_offset);
  }
  py::object dims(const int64_t* from) const {
    if (from == nullptr) return py::none();
    py::tuple all(static_cast<size_t>(tensor().ndim));
    for (int32_t i = 0; i < tensor().ndim; ++i) all[static_cast<size_t>(i)] = py::int_(from[i]);
    return all;
  }

 private:
  struct Delete {
    void operator()(DlManagedTensor* managed) const {
      if (managed->deleter != nullptr) managed->deleter(managed);
    }
  };
  std::unique_ptr<DlManagedTensor, Delete> managed_;
};

}  // namespace

void bind_gpu(py::module_& m) {
  m.def("cuda_built", &cuda_built);
  m.def(
      "gpu_of", [](uintptr_t address) { return gpu_of(reinterpret_cast<const std::byte*>(address)); },
      py::arg("address"));
  m.def(
      "gpu_path",
      [](const std::string& forced, size_t ranks, size_t gpus, bool nccl) {
        DeviceTeam team;
        team.ranks = ranks;
        team.gpus = gpus;
        team.exported = true;
        team.nccl = nccl;
        const GpuPath path = select_gpu_path(forced, team);
        return std::make_pair(std::string(path.algorithm == Algo::kAuto ? "none" : path_name(path.algorithm)),
                              path.reason);
      },
      py::arg("forced"), py::arg("ranks"), py::arg("gpus"), py::arg("nccl"));
  m.def("nccl", [] {
    const py::gil_scoped_release release;
    try {
      const auto library = nccl_library(Settings::from_environment().nccl_library);
      return std::make_pair(library->version(), library->name() + " (" + library->path() + ")");
    } catch (const UnavailableError& error) {
      return std::make_pair(0, std::string(error.what()));
    }
  });
  m.def("nccl_found_at", &nccl_found_at, py::arg("path"));
  m.def("cuda_report", [] {
    const py::gil_scoped_release release;
    return survey_gpus();
  });
  py::class_<PyDeviceMemory>(m, "DeviceMemory")
      .def_property_readonly("address", [](const PyDeviceMemory& d) { return reinterpret_cast<uintptr_t>(d.address); })
      .def_readonly("nbytes", &PyDeviceMemory::nbytes)
      .def_property_readonly("ordinal", [](const PyDeviceMemory& d) { return d.device->ordinal(); })
      .def_property_readonly("__cuda_array_interface__", &PyDeviceMemory::interface);
  py::class_<PyDlpack>(m, "DLPack")
      .def(py::init<py::capsule>(), py::arg("capsule"))
      .def_property_readonly("address", &PyDlpack::address)
      .def_property_readonly(
          "device", [](const PyDlpack& d) { return std::make_pair(d.tensor().device_type, d.tensor().device_id); })
      .def_property_readonly(
          "type",
          [](const PyDlpack& d) { return py::make_tuple(d.tensor().type_code, d.tensor().bits, d.tensor().lanes); })
      .def_property_readonly("shape", [](const PyDlpack& d) { return d.dims(d.tensor().shape); })
      .def_property_readonly("strides", [](const PyDlpack& d) { return d.dims(d.tensor().strides); });
}

}  // namespace rr
