// From a call's arguments to a request, and from the request to its group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "measure/bench.h"
#include "python/objects.h"

namespace rr {

// From the first operation on a GPU's memory on, that is the rank's GPU.
void use_gpu(Context& context, int ordinal);
// The one place where a request meets the core.
PyWork submit(const PyGroup& group, Request& request, const py::object& name, std::unique_ptr<Held> held);
void allreduce(const PyGroup& group, py::handle src, py::handle dst, int op, py::handle prescale, py::handle postscale,
               const py::object& name, const py::object& wire);
PyWork allreduce_async(const PyGroup& group, const py::sequence& srcs, const py::sequence& dsts, int op,
                       py::handle prescale, py::handle postscale, const py::object& name, const py::object& wire);
PyWork reduce_async(const PyGroup& group, Kind kind, py::handle src, py::handle dst, int op, py::handle prescale,
                    py::handle postscale, int root, const py::object& name);
// src and dst may be None where the kind does not use them.
PyWork exchange_async(const PyGroup& group, Kind kind, const py::object& src, const py::object& dst, int root,
                      std::vector<uint64_t> splits, const py::object& name, std::vector<uint64_t> expected = {});
PyWork message(const PyGroup& group, py::handle buffer, int peer, py::handle tag, bool outgoing);
// Between arrays of one GPU, for libraries that are not asked to copy.
PyWork copy_on_gpu(const PyGroup& world, py::handle src, py::handle dst);
Kind kind_from(const std::string& text);
BenchJob bench_job(const PyGroup& group, const std::string& kind, py::handle src, py::handle dst, int op, int iters,
                   Held& held);

}  // namespace rr
