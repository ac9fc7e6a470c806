// Bindings: a rank's membership of a job.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "measure/tuning.h"
#include "python/bindings.h"
#include "python/calls.h"
#include "transport/tcp/tcp_network.h"

namespace rr {
namespace {

// Of the program's main thread, for other ranks that wait for this one.
void where_in_program(const std::function<void(const std::string&)>& known) {
  if (!can_take_gil()) return;
  const py::gil_scoped_acquire gil;
  known("");
  try {
    py::module_::import("ringreduce.job.main_thread").attr("where")(py::cpp_function(known));
  } catch (const std::exception& error) {  // another rank has no use for a traceback
    known(std::string("cannot be looked at: ") + error.what());
  }
}

}  // namespace

void bind_context(py::module_& m) {
  py::class_<TuningPlan>(m, "TuningPlan")
      .def(py::init([](uint64_t hash, size_t chunk_nbytes, size_t eager_nbytes) {
             return TuningPlan{hash, chunk_nbytes, eager_nbytes};
           }),
           py::arg("hash") = 0, py::arg("chunk_nbytes") = 0, py::arg("eager_nbytes") = 0);
  m.attr("PLAN_UNUSABLE") = TuningPlan::kUnusable;
  m.attr("CHUNK_LARGEST") = kSlotLargest;
  m.attr("CHUNK_DEFAULT") = TunedSizes().chunk_nbytes;
  m.attr("EAGER_LARGEST") = kEagerNbytes;
  m.attr("EAGER_DEFAULT") = TunedSizes().eager_nbytes;
  py::class_<Context, std::shared_ptr<Context>>(m, "Context")
      .def(py::init([](int fd, int rank, int size, const std::vector<int>& pidfds, const std::string& hostname,
                       std::optional<double> timeout, std::optional<std::vector<int>> hosts,
                       const std::shared_ptr<MpiCommunicator>& mpi, const std::shared_ptr<TcpNetwork>& tcp,
                       const std::string& recorded_as, const std::vector<int>& job_ranks, const TuningPlan& plan) {
             const py::gil_scoped_release release;
             Network network = mpi_network(hosts, mpi);
             if (tcp != nullptr && hosts) network = tcp_network(tcp, *hosts);
             auto context = std::make_unique<Context>(fd, rank, size, pidfds, hostname, registry(), interrupt, tune,
                                                      timeout.value_or(-1.0), std::move(network),
                                                      Recording{recorder(), recorded_as, job_ranks}, plan);
             context->set_where(where_in_program);
             context->calling_threads().set_has_others(has_other_threads);
             return guard_fork(std::move(context));
           }),
           py::arg("fd"), py::arg("rank"), py::arg("size"), py::arg("pidfds"), py::arg("hostname"),
           py::arg("timeout") = py::none(), py::arg("hosts") = py::none(), py::arg("mpi") = py::none(),
           py::arg("tcp") = py::none(), py::arg("recorded_as") = "", py::arg("job_ranks") = std::vector<int>(),
           py::arg("plan") = TuningPlan())
      .def("set_timeout", &Context::set_timeout_s, py::arg("timeout"))
      .def_property_readonly("most_group", &Context::most_group)
      .def_property_readonly(
          "world", [](const std::shared_ptr<Context>& c) { return PyGroup{c, std::shared_ptr<Group>(c, &c->world())}; })
      .def(
          "add_group",
          [](const std::shared_ptr<Context>& c, int fd, const std::vector<int>& ranks, int id) {
            const WithoutGil unlocked(*c);
            return PyGroup{c, ending_without_gil(c->add_group(fd, ranks, id, interrupt))};
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
      .def("forget_after_fork",
           [](Context& context) {
             WithoutGil::forget_after_fork();
             forget_trash_after_fork();
             context.forget_after_fork();
           })
      .def_property_readonly("gpu",
                             [](const Context& c) -> std::optional<int> {
                               if (c.gpu().device() == nullptr) return std::nullopt;
                               return c.gpu().device()->ordinal();
                             })
      .def(
          "device_memory",
          [](Context& c, int ordinal, size_t nbytes) {
            const py::gil_scoped_release release;
            use_gpu(c, ordinal);
            const auto memory =
                std::make_shared<Output>(new_output(c.gpu().shared_device(), std::max<size_t>(1, nbytes)));
            return PyDeviceMemory(c.gpu().shared_device(), memory, memory->get(), nbytes);
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
             c.stats().for_each([&](const char* name, uint64_t value) { values[name] = value; });
             return values;
           })
      .def("times",
           [](Context& c) {
             const ControlSegment& control = c.world().control();
             std::vector<double> waited_s;
             std::vector<double> late_s;
             for (int r = 0; r < control.size(); ++r) {
               waited_s.push_back(static_cast<double>(control.score(r).waited_ns.load()) * 1e-9);
               late_s.push_back(static_cast<double>(control.score(r).late_ns.load()) * 1e-9);
             }
             return py::make_tuple(static_cast<double>(control.header().sampled_ns.load()) * 1e-9, waited_s, late_s);
           })
      .def("links",
           [](Context& c) {
             std::vector<std::tuple<int, int, uint64_t, double>> links;
             for (const SlowLinks::Link& link : links_of(c.world().control(), c.world().hosts())) {
               links.emplace_back(link.from, link.to, link.nbytes, static_cast<double>(link.busy_ns) * 1e-9);
             }
             return links;
           })
      .def("calls",
           [](Context& c) {
             const py::gil_scoped_release release;
             return c.calls_text();
           })
      .def("settings", [](Context& c) {
        std::vector<std::tuple<std::string, py::str, std::string>> list;  // values as os.environ has them
        for (const KnobValue& v : c.settings().values) {
          const auto size = static_cast<Py_ssize_t>(v.value.size());
          PyObject* const value = PyUnicode_DecodeFSDefaultAndSize(v.value.data(), size);
          if (value == nullptr) throw py::error_already_set();
          list.emplace_back(v.name, py::reinterpret_steal<py::str>(value), v.origin);
        }
        return list;
      });
}

}  // namespace rr
