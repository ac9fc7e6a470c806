// Bindings: the table of what Python sees, and errors to exceptions. No logic.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "data/stream.h"
#include "engine/bench.h"
#include "engine/context.h"
#include "engine/limit.h"
#include "gpu/device.h"
#include "python_calls.h"
#include "python_framework.h"
#include "python_gpu.h"
#include "python_mpi.h"

#ifndef RR_VERSION
#define RR_VERSION "0.0.0"
#endif

namespace rr {
namespace {

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
  bind_gpu(m);
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

  py::class_<PyOutput>(m, "_Output", py::buffer_protocol()).def_buffer([](PyOutput& o) {
    return py::buffer_info(o.operation->output.get(), 1, "B", 1, {static_cast<py::ssize_t>(o.operation->output_nbytes)},
                           {1});
  });

  py::class_<PyWork>(m, "Work")
      .def("wait", &PyWork::wait, py::arg("timeout") = py::none())
      .def("done", &PyWork::done)
      .def("hold", &PyWork::hold, py::arg("stream"))
      .def_property_readonly("on_gpu", [](const PyWork& w) { return w.device != nullptr; })
      .def_property_readonly("captured", [](const PyWork& w) { return w.device != nullptr && w.device->is_recurring; })
      .def_property_readonly(
          "output",
          [](const PyWork& w) -> py::object {
            const OperationPtr operation = w.inner();
            if (operation == nullptr || operation->output == nullptr) return py::none();
            if (w.device != nullptr) {
              const int ordinal = w.group.context->device()->ordinal();
              return py::cast(PyDeviceMemory(operation, operation->output.get(), operation->output_nbytes, ordinal));
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
          [](const PyGroup& g, py::handle src, py::handle dst, int op, double pre, double post,
             const py::object& name) {
            return reduce_async(g, Kind::kReduceScatter, src, dst, op, pre, post, -1, name);
          },
          py::arg("src"), py::arg("dst"), py::arg("op"), py::arg("prescale"), py::arg("postscale"), py::arg("name"))
      .def(
          "reduce_async",
          [](const PyGroup& g, py::handle src, py::handle dst, int op, double pre, double post, int root,
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
          "barrier",
          [](const PyGroup& g, const py::object& name) {
            Request request;
            submit(g, request, name, std::make_unique<Held>()).wait(std::nullopt);
          },
          py::arg("name"))
      .def(
          "send_async",
          [](const PyGroup& g, py::handle src, int peer, int tag) { return message(g, src, peer, tag, true); },
          py::arg("src"), py::arg("dst_rank"), py::arg("tag"))
      .def(
          "recv_async",
          [](const PyGroup& g, py::handle dst, int peer, int tag) { return message(g, dst, peer, tag, false); },
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

  bind_mpi(m);
  bind_framework(m);
  py::class_<Context, std::shared_ptr<Context>>(m, "Context")
      .def(py::init([](int fd, int rank, int size, const std::vector<int>& pidfds, const std::string& hostname,
                       std::optional<double> timeout, std::optional<std::vector<int>> hosts,
                       const std::shared_ptr<MpiCommunicator>& mpi) {
             const py::gil_scoped_release release;
             auto context = std::make_unique<Context>(fd, rank, size, pidfds, hostname, registry(), interrupt,
                                                      timeout.value_or(-1.0), mpi_network(hosts, mpi));
             return guard_fork(std::move(context));
           }),
           py::arg("fd"), py::arg("rank"), py::arg("size"), py::arg("pidfds"), py::arg("hostname"),
           py::arg("timeout") = py::none(), py::arg("hosts") = py::none(), py::arg("mpi") = py::none())
      .def("set_timeout", &Context::set_timeout_s, py::arg("timeout"))
      .def_property_readonly(
          "world", [](const std::shared_ptr<Context>& c) { return PyGroup{c, std::shared_ptr<Group>(c, &c->world())}; })
      .def(
          "add_group",
          [](const std::shared_ptr<Context>& c, int fd, const std::vector<int>& ranks, int id) {
            const WithoutGil unlocked(*c);
            return PyGroup{c, c->add_group(fd, ranks, id, interrupt)};
          },
          py::arg("fd"), py::arg("ranks"), py::arg("id"))
      .def(
          "remove_group",
          [](const std::shared_ptr<Context>& c, PyGroup& g) {
            const std::shared_ptr<Group> removed = g.hold();
            {
              const WithoutGil unlocked(*c);
              c->remove_group(removed.get(), interrupt);
            }
            g.group.reset();
          },
          py::arg("group"))
      .def(
          "fail_as_lost",
          [](Context& c, const std::string& why) {
            const py::gil_scoped_release release;
            c.fail_as_lost(why);
          },
          py::arg("why"))
      .def(
          "shutdown",
          [](Context& c, const std::string& why) {
            {
              const py::gil_scoped_release release;
              c.shutdown(why);
              WithoutGil::await_others();
            }
            trash().empty();
          },
          py::arg("why") = "")
      .def(
          "copy_on_gpu",
          [](const std::shared_ptr<Context>& c, py::handle src, py::handle dst) {
            return copy_on_gpu({c, std::shared_ptr<Group>(c, &c->world())}, src, dst);
          },
          py::arg("src"), py::arg("dst"))
      .def("forget_after_fork", &Context::forget_after_fork)
      .def_property_readonly("gpu",
                             [](const Context& c) -> std::optional<int> {
                               if (c.device() == nullptr) return std::nullopt;
                               return c.device()->ordinal();
                             })
      .def(
          "device_memory",
          [](Context& c, int ordinal, size_t nbytes) {
            const py::gil_scoped_release release;
            use_gpu(c, ordinal);
            const auto memory = std::make_shared<Output>(new_output(c.shared_device(), std::max<size_t>(1, nbytes)));
            return PyDeviceMemory(memory, memory->get(), nbytes, ordinal);
          },
          py::arg("ordinal"), py::arg("nbytes"))
      .def("failure",
           [](Context& c) -> std::optional<std::string> {
             if (!has_failed(c.world().control())) return std::nullopt;
             return failure_text(c.world().control());
           })
      .def("stats",
           [](Context& c) {
             py::dict values;
#define RR_VALUE(name) values[#name] = c.stats().name.load();
             RR_STATS(RR_VALUE)
#undef RR_VALUE
             return values;
           })
      .def("settings", [](Context& c) {
        std::vector<std::tuple<std::string, std::string, std::string>> list;
        for (const KnobValue& v : c.settings().values) list.emplace_back(v.name, v.value, v.origin);
        return list;
      });
}

}  // namespace rr
