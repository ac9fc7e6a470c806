#include "transport/mpi/mpi_cuda.h"

namespace rr {
namespace {

constexpr int kGpuSupportCuda = 0;  // MPIX_GPU_SUPPORT_CUDA

MpiCudaDecision said(const MpiLibrary& library, const char* call, bool yes) {
  return {yes, std::string(call) + " of " + library.version() + " says " + (yes ? "yes" : "no")};
}

}  // namespace

MpiCudaDecision mpi_cuda(MpiLibrary& library, const std::string& setting) {
  if (setting != "auto") return {setting == "on", "RINGREDUCE_MPI_CUDA=" + setting};
  bool initialized = false;
  bool finalized = false;
  if (library.initialized(initialized) != 0 || library.finalized(finalized) != 0 || !initialized || finalized) {
    return {false, library.version() + " is not initialised, so it cannot be asked"};
  }
  const MpiCudaCalls calls = library.cuda_calls();
  if (calls.query_cuda_support != nullptr) {
    return said(library, "MPIX_Query_cuda_support", calls.query_cuda_support() == 1);
  }
  if (calls.gpu_query_support != nullptr) {
    int supported = 0;
    const bool yes = calls.gpu_query_support(kGpuSupportCuda, &supported) == 0 && supported != 0;
    return said(library, "MPIX_GPU_query_support", yes);
  }
  return {false, library.version() + " has neither MPIX_Query_cuda_support nor MPIX_GPU_query_support"};
}

}  // namespace rr
