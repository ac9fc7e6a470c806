// Bindings of the MPI transport: what ringreduce/job/mpi.py makes, and links for its tests.
#include <pybind11/stl.h>

#include "base/never_destroyed.h"
#include "python/bindings.h"
#include "python/objects.h"
#include "transport/link.h"
#include "transport/mpi/device_messages.h"
#include "transport/mpi/mpi_communicator.h"
#include "transport/mpi/mpi_cuda.h"

namespace rr {
namespace {

// Never closed: MPI may have been left memory.
std::shared_ptr<MpiLibrary> open_mpi(const std::string& path, size_t handle_size) {
  static auto& libraries = never_destroyed<std::vector<std::shared_ptr<MpiLibrary>>>();
  return libraries.emplace_back(MpiLibrary::open(path, handle_size));
}

size_t link_fold(Link& link, py::handle dst, int op) {
  Borrowed borrowed;
  const TensorView view = view_of(dst, true, borrowed.buffer);
  const Reduction reduction = {view.dtype, op_from_code(op), 1.0, 1.0, 1};
  check(reduction);
  const py::gil_scoped_release release;
  return link.fold(view.data, view.nbytes(), reduction, kernels("auto"));
}

}  // namespace

Network mpi_network(const std::optional<std::vector<int>>& hosts, const std::shared_ptr<MpiCommunicator>& mpi) {
  if (mpi == nullptr || !hosts) return {};
  const bool takes_pointers = mpi_cuda(mpi->library(), Settings::from_environment().mpi_cuda).takes_pointers;
  Network network;
  network.name = "mpi";
  network.host_of = *hosts;
  network.link = [mpi](int peer, int channel) { return mpi_link(mpi, peer, link_tag(channel), link_tag(channel)); };
  network.progress = [mpi] { return mpi->progress(); };
  if (takes_pointers) network.device_messages = mpi_device_messages(mpi);
  network.most_group = most_group(mpi->tag_ub());
  return network;
}

void bind_mpi(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;

  py::class_<MpiLibrary, std::shared_ptr<MpiLibrary>>(m, "MpiLibrary")
      .def(py::init(&open_mpi), py::arg("path"), py::arg("handle_size"))
      .def_property_readonly("abi", &MpiLibrary::abi)
      .def(
          "cuda",
          [](MpiLibrary& library, const std::string& setting) {
            const MpiCudaDecision decision = mpi_cuda(library, setting);
            return std::make_pair(decision.takes_pointers, decision.reason);
          },
          py::arg("setting"));

  py::class_<MpiCommunicator, std::shared_ptr<MpiCommunicator>>(m, "MpiCommunicator")
      .def(py::init([](std::shared_ptr<MpiLibrary> library, uintptr_t comm, uintptr_t byte, uintptr_t errors_return,
                       double timeout, int tag_ub) {
             const py::gil_scoped_release release;
             auto made = std::make_unique<MpiCommunicator>(std::move(library), comm, byte, errors_return, timeout,
                                                           interrupt, tag_ub);
             return ending_without_gil(std::shared_ptr<MpiCommunicator>(std::move(made)));
           }),
           py::arg("library"), py::arg("comm"), py::arg("byte"), py::arg("errors_return"), py::arg("timeout"),
           py::arg("tag_ub") = kTagPromised)
      .def_property_readonly("rank", &MpiCommunicator::rank)
      .def_property_readonly("size", &MpiCommunicator::size)
      .def_property_readonly("thread_level", [](const MpiCommunicator& c) { return name(c.threads()); })
      .def("progress", &MpiCommunicator::progress, Release())
      .def("close", &MpiCommunicator::close, py::arg("drain") = MpiCommunicator::kDrainS, Release())
      .def(
          "link",
          [](std::shared_ptr<MpiCommunicator> c, int peer, int send_tag, int receive_tag, size_t message_nbytes,
             size_t depth) {
            return ending_without_gil(
                std::shared_ptr<Link>(mpi_link(std::move(c), peer, send_tag, receive_tag, {message_nbytes, depth})));
          },
          py::arg("peer"), py::arg("send_tag"), py::arg("receive_tag"),
          py::arg("message_nbytes") = MpiLinkOptions().message_nbytes, py::arg("depth") = MpiLinkOptions().depth);

  py::class_<Link, std::shared_ptr<Link>>(m, "Link")
      .def(
          "push",
          [](Link& link, py::handle src) {
            Borrowed borrowed;
            const TensorView view = view_of(src, false, borrowed.buffer);
            const py::gil_scoped_release release;
            return link.push(view.data, view.nbytes());
          },
          py::arg("src"))
      .def(
          "pull",
          [](Link& link, py::handle dst) {
            Borrowed borrowed;
            const TensorView view = view_of(dst, true, borrowed.buffer);
            const py::gil_scoped_release release;
            return link.pull(view.data, view.nbytes());
          },
          py::arg("dst"))
      .def("fold", &link_fold, py::arg("dst"), py::arg("op"));
}

}  // namespace rr
