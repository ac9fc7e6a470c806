// One function for each file of bindings. module.cc calls them in this order.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "engine/context.h"
#include "transport/mpi/mpi_communicator.h"

namespace rr {

void bind_data(pybind11::module_& m);
void bind_gpu(pybind11::module_& m);
void bind_segments(pybind11::module_& m);
void bind_group(pybind11::module_& m);
void bind_mpi(pybind11::module_& m);
void bind_tcp(pybind11::module_& m);
void bind_framework(pybind11::module_& m);
void bind_context(pybind11::module_& m);
void bind_timeline(pybind11::module_& m);
void bind_watch(pybind11::module_& m);

// Where all contexts of this process record.
std::shared_ptr<Recorder> recorder();

// Links of a job's world over MPI; none without a communicator.
Network mpi_network(const std::optional<std::vector<int>>& hosts, const std::shared_ptr<MpiCommunicator>& mpi);

}  // namespace rr
