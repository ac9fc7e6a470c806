// Bindings: arguments to views and back, errors to exceptions, and the GIL. No logic.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include "engine/bench.h"
#include "engine/context.h"
#include "python_memory.h"

#ifndef RR_VERSION
#define RR_VERSION "0.0.0"
#endif

namespace py = pybind11;

namespace rr {
namespace {

void interrupt() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// --- objects ------------------------------------------------------------------------------------------------------

// A forked child inherits the objects but neither the engine thread nor the control segments, so it only forgets them.
std::shared_ptr<Context> guard_fork(std::unique_ptr<Context> context) {
  const pid_t owner = ::getpid();
  return std::shared_ptr<Context>(context.release(), [owner](Context* item) {
    if (::getpid() != owner) return;
    const py::gil_scoped_release release;
    std::unique_ptr<Context>(item).reset();
  });
}

struct PyOutput {
  OperationPtr operation;
};

struct PyGroup {
  std::shared_ptr<Context> context;
  std::shared_ptr<Group> group;
  Group& get() const {
    if (group == nullptr) throw InvalidArgumentError("the group has been removed");
    return *group;
  }
};

struct PyWork {
  PyGroup group;
  OperationPtr operation;

  void wait(std::optional<double> timeout) const {
    bool in_time = true;
    {
      const py::gil_scoped_release release;
      in_time = group.get().wait(*operation, timeout.value_or(-1.0), interrupt);
    }
    trash().empty();
    if (!in_time) throw TimeoutError("the operation is still pending after " + std::to_string(*timeout) + " s");
  }
  bool done() const {
    const py::gil_scoped_release release;
    return group.get().poll(*operation);
  }
};

struct PySegment {
  std::shared_ptr<SegmentRegistry> owner = registry();
  Segment segment;
  pid_t creator = ::getpid();
  PySegment(int fd, uint64_t uid, int region, int regions, size_t nbytes) : segment(fd, uid, region, regions, nbytes) {
    owner->add(&segment);
  }
  ~PySegment() {
    // In a forked child the registry is of no use, and may have been copied while another thread held its lock.
    if (::getpid() == creator) owner->remove(&segment);
  }
};

// The one place where a request meets the core.
PyWork submit(const PyGroup& group, Request& request, const py::object& name, std::unique_ptr<Held> held) {
  trash().empty();
  std::string text;
  if (!name.is_none()) {
    text = name.cast<std::string>();
    request.name = &text;
  }
  request.keep = keep(std::move(held));
  const py::gil_scoped_release release;
  return {group, group.get().submit(request, interrupt)};
}

Request reduce_request(Kind kind, int op, double prescale, double postscale) {
  Request request;
  request.kind = kind;
  request.op = op_from_code(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.is_async = true;
  return request;
}

void allreduce(const PyGroup& group, py::handle src, py::handle dst, int op, double prescale, double postscale,
               const py::object& name) {
  if (name.is_none()) {
    Borrowed src_buffer;
    Borrowed dst_buffer;
    const TensorView in = view_of(src, dst.is(src), src_buffer.buffer);
    const TensorView out = dst.is(src) ? in : view_of(dst, true, dst_buffer.buffer);
    const Reduction reduction = {in.dtype, op_from_code(op), prescale, postscale, group.get().size()};
    const py::gil_scoped_release release;
    if (group.get().allreduce_quick(in, out, reduction, interrupt)) return;
  }
  auto held = std::make_unique<Held>();
  Request request = reduce_request(Kind::kAllreduce, op, prescale, postscale);
  request.is_async = false;
  request.srcs.push_back(view_of(src, false, *held));
  request.dsts.push_back(view_of(dst, true, *held));
  submit(group, request, name, std::move(held)).wait(std::nullopt);
}

PyWork allreduce_async(const PyGroup& group, const py::sequence& srcs, const py::sequence& dsts, int op,
                       double prescale, double postscale, const py::object& name) {
  auto held = std::make_unique<Held>();
  Request request = reduce_request(Kind::kAllreduce, op, prescale, postscale);
  for (const py::handle src : srcs) request.srcs.push_back(view_of(src, false, *held));
  for (const py::handle dst : dsts) request.dsts.push_back(view_of(dst, true, *held));
  return submit(group, request, name, std::move(held));
}

PyWork reduce_async(const PyGroup& group, Kind kind, py::handle src, py::handle dst, int op, double prescale,
                    double postscale, int root, const py::object& name) {
  auto held = std::make_unique<Held>();
  Request request = reduce_request(kind, op, prescale, postscale);
  request.root = root;
  request.srcs.push_back(view_of(src, false, *held));
  // On other ranks than the root a reduce does not write its output.
  request.dsts.push_back(view_of(dst, kind != Kind::kReduce || group.get().rank() == root, *held));
  return submit(group, request, name, std::move(held));
}

// src and dst may be None where the kind does not use them.
PyWork exchange_async(const PyGroup& group, Kind kind, const py::object& src, const py::object& dst, int root,
                      std::vector<uint64_t> splits, const py::object& name) {
  auto held = std::make_unique<Held>();
  Request request;
  request.kind = kind;
  request.root = root;
  request.is_async = true;
  request.splits = std::move(splits);
  if (!src.is_none()) request.srcs.push_back(view_of(src, false, *held));
  if (!dst.is_none()) request.dsts.push_back(view_of(dst, true, *held));
  return submit(group, request, name, std::move(held));
}

PyWork message(const PyGroup& group, py::handle buffer, int peer, int tag, bool outgoing) {
  trash().empty();
  auto held = std::make_unique<Held>();
  const TensorView view = view_of(buffer, !outgoing, *held);
  auto kept = keep(std::move(held));
  const py::gil_scoped_release release;
  Group& g = group.get();
  return {group, outgoing ? g.send(view, peer, tag, std::move(kept)) : g.receive(view, peer, tag, std::move(kept))};
}

Kind kind_from(const std::string& text) {
#define RR_MATCH(id, upper, lower) \
  if (text == lower) return Kind::id;
  RR_KINDS(RR_MATCH)
#undef RR_MATCH
  throw InvalidArgumentError("no collective is called '" + text + "'");
}

void raise_as(const char* class_name, const char* text) {
  // The one class whose Python name is Horovod's.
  const char* python_name = std::string_view(class_name) == "InternalError" ? "HorovodInternalError" : class_name;
  const py::object type = py::module_::import("ringreduce.errors").attr(python_name);
  PyErr_SetString(type.ptr(), text);
}

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& e) {
#define RR_RAISE(name, base) \
  if (typeid(e) == typeid(name)) return raise_as(#name, e.what());
    RR_ERRORS(RR_RAISE)
#undef RR_RAISE
    raise_as("Error", e.what());
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
  m.def("cuda_built", [] { return false; });
  m.def(
      "control_nbytes", [](int size) { return Board::nbytes(size, Settings::from_environment().cache_capacity); },
      py::arg("size"));
  m.def(
      "memfd", [](const std::string& label, size_t nbytes) { return create_memfd(label, nbytes).release(); },
      py::arg("label"), py::arg("nbytes"));

  py::class_<PySegment>(m, "Segment", py::buffer_protocol())
      .def(py::init<int, uint64_t, int, int, size_t>(), py::arg("fd"), py::arg("uid"), py::arg("region"),
           py::arg("regions"), py::arg("nbytes"))
      .def_buffer([](PySegment& s) {
        return py::buffer_info(s.segment.own(), 1, "B", 1, {static_cast<py::ssize_t>(s.segment.nbytes())}, {1});
      });

  py::class_<PyOutput>(m, "_Output", py::buffer_protocol()).def_buffer([](PyOutput& o) {
    return py::buffer_info(o.operation->output.get(), 1, "B", 1, {static_cast<py::ssize_t>(o.operation->output_nbytes)},
                           {1});
  });

  py::class_<PyWork>(m, "Work")
      .def("wait", &PyWork::wait, py::arg("timeout") = py::none())
      .def("done", &PyWork::done)
      .def_property_readonly("output",
                             [](const PyWork& w) -> py::object {
                               if (w.operation->output == nullptr) return py::none();
                               return py::memoryview(py::cast(PyOutput{w.operation}));
                             })
      .def_property_readonly("counts", [](const PyWork& w) { return w.operation->counts; });

  py::class_<PyGroup>(m, "Group")
      .def_property_readonly("rank", [](const PyGroup& g) { return g.get().rank(); })
      .def_property_readonly("size", [](const PyGroup& g) { return g.get().size(); })
      .def_property_readonly("ranks", [](const PyGroup& g) { return g.get().ranks(); })
      .def("allreduce", &allreduce, py::arg("src"), py::arg("dst"), py::arg("op"), py::arg("prescale"),
           py::arg("postscale"), py::arg("name"))
      .def("allreduce_async", &allreduce_async, py::arg("srcs"), py::arg("dsts"), py::arg("op"), py::arg("prescale"),
           py::arg("postscale"), py::arg("name"))
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
          [](const PyGroup& g, const py::object& src, const py::object& name) {
            return exchange_async(g, Kind::kAllgather, src, py::none(), -1, {}, name);
          },
          py::arg("src"), py::arg("name"))
      .def(
          "broadcast_async",
          [](const PyGroup& g, const py::object& buffer, int root, const py::object& name) {
            return exchange_async(g, Kind::kBroadcast, buffer, buffer, root, {}, name);
          },
          py::arg("buffer"), py::arg("root"), py::arg("name"))
      .def(
          "alltoall_async",
          [](const PyGroup& g, const py::object& src, std::optional<std::vector<uint64_t>> splits,
             const py::object& name) {
            return exchange_async(g, Kind::kAlltoall, src, py::none(), -1, splits.value_or(std::vector<uint64_t>()),
                                  name);
          },
          py::arg("src"), py::arg("splits"), py::arg("name"))
      .def(
          "gather_async",
          [](const PyGroup& g, const py::object& src, int root, const py::object& name) {
            return exchange_async(g, Kind::kGather, src, py::none(), root, {}, name);
          },
          py::arg("src"), py::arg("root"), py::arg("name"))
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
      .def(
          "join", [](const PyGroup& g) { return g.get().join(interrupt); }, py::call_guard<py::gil_scoped_release>())
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
            BenchJob job;
            job.kind = kind_from(kind);
            job.src = view_of(src, true, held);
            job.dst = view_of(dst, true, held);
            job.reduction = {job.src.dtype, op_from_code(op), 1.0, 1.0, g.get().size()};
            job.iters = iters;
            job.rewrite = rewrite;
            const py::gil_scoped_release release;
            return bench(g.get(), job, interrupt);
          },
          py::arg("kind"), py::arg("src"), py::arg("dst"), py::arg("op"), py::arg("iters"), py::arg("rewrite"));

  py::class_<Context, std::shared_ptr<Context>>(m, "Context")
      .def(py::init([](int fd, int rank, int size, const std::vector<int>& pidfds, const std::string& hostname) {
             const py::gil_scoped_release release;
             auto context = std::make_unique<Context>(fd, rank, size, pidfds, hostname, registry(), interrupt);
             return guard_fork(std::move(context));
           }),
           py::arg("fd"), py::arg("rank"), py::arg("size"), py::arg("pidfds"), py::arg("hostname"))
      .def_property_readonly(
          "world", [](const std::shared_ptr<Context>& c) { return PyGroup{c, std::shared_ptr<Group>(c, &c->world())}; })
      .def(
          "add_group",
          [](const std::shared_ptr<Context>& c, int fd, const std::vector<int>& ranks) {
            const py::gil_scoped_release release;
            return PyGroup{c, c->add_group(fd, ranks, interrupt)};
          },
          py::arg("fd"), py::arg("ranks"))
      .def(
          "remove_group",
          [](const std::shared_ptr<Context>& c, PyGroup& g) {
            const py::gil_scoped_release release;
            c->remove_group(&g.get(), interrupt);
            g.group.reset();
          },
          py::arg("group"))
      .def("shutdown",
           [](Context& c) {
             {
               const py::gil_scoped_release release;
               c.shutdown();
             }
             trash().empty();
           })
      .def("forget_after_fork", &Context::forget_after_fork)
      .def("failure",
           [](Context& c) -> std::optional<std::string> {
             if (!has_failed(c.world().board())) return std::nullopt;
             return failure_text(c.world().board());
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
