// Whether MPI may be given pointers to CUDA memory. A library that was not built for it takes them too, and crashes or
// sends what lies elsewhere: so it is asked, and without a yes GPU buffers go through host memory.
#pragma once

#include <string>

#include "transport/mpi/mpi_library.h"

namespace rr {

struct MpiCudaDecision {
  bool takes_pointers = false;
  std::string reason;  // such as "MPIX_Query_cuda_support of Open MPI v5.0.11 says no"
};

// setting: RINGREDUCE_MPI_CUDA, one of auto, on and off; with the last two nobody is asked. Whoever has a device buffer
// and an MPI link asks once per group, before the first message, and stages through pinned memory after a no.
MpiCudaDecision mpi_cuda(MpiLibrary& library, const std::string& setting);

}  // namespace rr
