// Bindings: a group, its operations and their results.
#include <pybind11/stl.h>

#include "measure/limit.h"
#include "measure/tuning.h"
#include "planner/two_level.h"
#include "python/bindings.h"
#include "python/calls.h"

namespace rr {
namespace {

PyWork barrier(const PyGroup& group, const py::object& name, bool is_async) {
  Request request;
  request.is_async = is_async;
  return submit(group, request, name, std::make_unique<Held>());
}

}  // namespace

void bind_group(py::module_& m) {
  m.attr("RING_NBYTES") = kRingNbytes;
  py::class_<PyOutput>(m, "_Output", py::buffer_protocol()).def_buffer([](PyOutput& o) {
    return py::buffer_info(o.operation->output.get(), 1, "B", 1, {static_cast<py::ssize_t>(o.operation->output_nbytes)},
                           {1});
  });

  py::class_<PyWork>(m, "Work")
      .def("wait", &PyWork::wait, py::arg("timeout") = py::none())
      .def("withdraw", &PyWork::withdraw)
      .def("done", &PyWork::done)
      .def_property_readonly("on_gpu", [](const PyWork& w) { return w.device != nullptr; })
      .def_property_readonly("output",
                             [](const PyWork& w) -> py::object {
                               const OperationPtr operation = w.inner();
                               if (operation == nullptr || operation->output == nullptr) return py::none();
                               if (w.device != nullptr) {
                                 return py::cast(PyDeviceMemory(w.group.context->gpu().shared_device(), operation,
                                                                operation->output.get(), operation->output_nbytes));
                               }
                               return py::memoryview(py::cast(PyOutput{operation}));
                             })
      .def_property_readonly("counts",
                             [](const PyWork& w) {
                               const OperationPtr operation = w.inner();
                               return operation == nullptr ? std::vector<uint64_t>() : operation->counts;
                             })
      .def_property_readonly("peer",
                             [](const PyWork& w) { return w.inner() == nullptr ? -1 : w.inner()->peer.load(); });

  py::class_<PyGroup>(m, "Group")
      .def_property_readonly("rank", [](const PyGroup& g) { return g.get().rank(); })
      .def_property_readonly("size", [](const PyGroup& g) { return g.get().size(); })
      .def_property_readonly("ranks", [](const PyGroup& g) { return g.get().ranks(); })
      .def("allreduce", &allreduce, py::arg("src"), py::arg("dst"), py::arg("op"), py::arg("prescale"),
           py::arg("postscale"), py::arg("name"), py::arg("wire") = py::none())
      .def("allreduce_async", &allreduce_async, py::arg("srcs"), py::arg("dsts"), py::arg("op"), py::arg("prescale"),
           py::arg("postscale"), py::arg("name"), py::arg("wire") = py::none())
      .def(
          "reducescatter_async",
          [](const PyGroup& g, py::handle src, py::handle dst, int op, py::handle pre, py::handle post,
             const py::object& name) {
            return reduce_async(g, Kind::kReduceScatter, src, dst, op, pre, post, -1, name);
          },
          py::arg("src"), py::arg("dst"), py::arg("op"), py::arg("prescale"), py::arg("postscale"), py::arg("name"))
      .def(
          "reduce_async",
          [](const PyGroup& g, py::handle src, py::handle dst, int op, py::handle pre, py::handle post, int root,
             const py::object& name) { return reduce_async(g, Kind::kReduce, src, dst, op, pre, post, root, name); },
          py::arg("src"), py::arg("dst"), py::arg("op"), py::arg("prescale"), py::arg("postscale"), py::arg("root"),
          py::arg("name"))
      .def(
          "allgather_async",
          [](const PyGroup& g, const py::object& src, const py::object& name, const py::object& dst,
             std::vector<uint64_t> expected) {
            return exchange_async(g, Kind::kAllgather, src, dst, -1, {}, name, std::move(expected));
          },
          py::arg("src"), py::arg("name"), py::arg("dst") = py::none(), py::arg("expected") = py::tuple())
      .def(
          "broadcast_async",
          [](const PyGroup& g, const py::object& buffer, int root, const py::object& name) {
            return exchange_async(g, Kind::kBroadcast, buffer, buffer, root, {}, name);
          },
          py::arg("buffer"), py::arg("root"), py::arg("name"))
      .def(
          "alltoall_async",
          [](const PyGroup& g, const py::object& src, std::optional<std::vector<uint64_t>> splits,
             const py::object& name, const py::object& dst, std::vector<uint64_t> expected) {
            return exchange_async(g, Kind::kAlltoall, src, dst, -1, splits.value_or(std::vector<uint64_t>()), name,
                                  std::move(expected));
          },
          py::arg("src"), py::arg("splits"), py::arg("name"), py::arg("dst") = py::none(),
          py::arg("expected") = py::tuple())
      .def(
          "gather_async",
          [](const PyGroup& g, const py::object& src, int root, const py::object& name,
             std::vector<uint64_t> expected) {
            return exchange_async(g, Kind::kGather, src, py::none(), root, {}, name, std::move(expected));
          },
          py::arg("src"), py::arg("root"), py::arg("name"), py::arg("expected") = py::tuple())
      .def(
          "scatter_async",
          [](const PyGroup& g, const py::object& src, const py::object& dst, int root, const py::object& name) {
            return exchange_async(g, Kind::kScatter, src, dst, root, {}, name);
          },
          py::arg("src"), py::arg("dst"), py::arg("root"), py::arg("name"))
      .def(
          "barrier", [](const PyGroup& g, const py::object& name) { barrier(g, name, false).wait_or_withdraw(); },
          py::arg("name"))
      .def(
          "barrier_async", [](const PyGroup& g, const py::object& name) { return barrier(g, name, true); },
          py::arg("name"))
      .def(
          "send_async",
          [](const PyGroup& g, py::handle src, int peer, py::handle tag) { return message(g, src, peer, tag, true); },
          py::arg("src"), py::arg("dst_rank"), py::arg("tag"))
      .def(
          "recv_async",
          [](const PyGroup& g, py::handle dst, int peer, py::handle tag) { return message(g, dst, peer, tag, false); },
          py::arg("dst"), py::arg("src_rank"), py::arg("tag"))
      .def_property_readonly("is_joining", [](const PyGroup& g) { return g.get().is_joining(); })
      .def(
          "check_members", [](const PyGroup& g, const std::vector<int>& ranks) { g.get().check_members(ranks); },
          py::arg("ranks"))
      .def("join",
           [](const PyGroup& g) {
             const std::shared_ptr<Group> members = g.hold();
             const WithoutGil unlocked(*g.context);
             return members->join(interrupt);
           })
      .def(
          "algorithm",
          [](const PyGroup& g, const std::string& kind, size_t nbytes, int dtype, bool registered) {
            return g.get().algorithm(kind_from(kind), nbytes, dtype_from_code(dtype), registered);
          },
          py::arg("kind"), py::arg("nbytes"), py::arg("dtype"), py::arg("registered"))
      .def(
          "bench",
          [](const PyGroup& g, const std::string& kind, py::handle src, py::handle dst, int op, int iters,
             bool rewrite) {
            Held held;
            BenchJob job = bench_job(g, kind, src, dst, op, iters, held);
            job.rewrite = rewrite;
            const std::shared_ptr<Group> members = g.hold();
            const WithoutGil unlocked(*g.context);
            return bench(*members, job, interrupt);
          },
          py::arg("kind"), py::arg("src"), py::arg("dst"), py::arg("op"), py::arg("iters"), py::arg("rewrite"))
      .def("sizes",
           [](const PyGroup& g) {
             const TunedSizes now = sizes(g.get());
             return py::make_tuple(now.chunk_nbytes, now.eager_nbytes);
           })
      .def(
          "set_sizes",
          [](const PyGroup& g, size_t chunk_nbytes, size_t eager_nbytes) {
            const std::shared_ptr<Group> members = g.hold();
            const WithoutGil unlocked(*g.context);
            set_sizes(*members, {chunk_nbytes, eager_nbytes}, interrupt);
          },
          py::arg("chunk_nbytes"), py::arg("eager_nbytes"))
      .def(
          "memory_limit",
          [](const PyGroup& g, const std::string& kind, py::handle src, py::handle dst, int op, int iters) {
            Held held;
            const BenchJob job = bench_job(g, kind, src, dst, op, iters, held);
            const std::shared_ptr<Group> members = g.hold();
            const WithoutGil unlocked(*g.context);
            return memory_limit(*members, job, interrupt);
          },
          py::arg("kind"), py::arg("src"), py::arg("dst"), py::arg("op"), py::arg("iters"))
      .def(
          "one_way_latency",
          [](const PyGroup& g, py::handle src, int iters) {
            Held held;
            const BenchJob job = bench_job(g, "barrier", src, src, 1, iters, held);
            const std::shared_ptr<Group> members = g.hold();
            const WithoutGil unlocked(*g.context);
            return one_way_latency(*members, job, interrupt);
          },
          py::arg("src"), py::arg("iters"));
}

}  // namespace rr
