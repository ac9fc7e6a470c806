// Who may give MPI a pointer to GPU memory: what a fake MPI says to either of the calls that there are.
#include "transport/mpi/mpi_cuda.h"

#include "doctest/doctest.h"
#include "fakes/fake_mpi.h"

namespace rr {
namespace {

int queries = 0;

template <int Answer>
int query_cuda_support() {
  ++queries;
  return Answer;
}

// MPICH's: of its three kinds of GPU (0: CUDA, 1: ZE, 2: HIP) this one knows the one that is asked for in Kind.
template <int Kind, int Code>
int gpu_query_support(int kind, int* supported) {
  ++queries;
  *supported = kind == Kind;
  return Code;
}

MpiCudaDecision decided(MpiCudaCalls calls, const char* setting = "auto") {
  FakeMpi mpi;
  mpi.cuda = calls;
  queries = 0;
  return mpi_cuda(mpi, setting);
}

TEST_CASE("mpi cuda: a library that has no call to ask gets no pointers to GPU memory") {
  const MpiCudaDecision decision = decided({});
  CHECK_FALSE(decision.takes_pointers);
  CHECK(decision.reason == "Fake MPI 1 has neither MPIX_Query_cuda_support nor MPIX_GPU_query_support");
}

TEST_CASE("mpi cuda: auto does what MPIX_Query_cuda_support says") {
  const MpiCudaDecision no = decided({&query_cuda_support<0>, nullptr});
  CHECK_FALSE(no.takes_pointers);
  CHECK(no.reason == "MPIX_Query_cuda_support of Fake MPI 1 says no");
  const MpiCudaDecision yes = decided({&query_cuda_support<1>, nullptr});
  CHECK(yes.takes_pointers);
  CHECK(yes.reason == "MPIX_Query_cuda_support of Fake MPI 1 says yes");
  CHECK(queries == 1);
  CHECK_FALSE(decided({&query_cuda_support<-1>, nullptr}).takes_pointers);  // no answer is no yes
}

TEST_CASE("mpi cuda: MPICH's call is asked for CUDA where it is alone, and an error is no yes") {
  const MpiCudaDecision yes = decided({nullptr, &gpu_query_support<0, 0>});
  CHECK(yes.takes_pointers);
  CHECK(yes.reason == "MPIX_GPU_query_support of Fake MPI 1 says yes");
  const MpiCudaDecision other = decided({nullptr, &gpu_query_support<2, 0>});
  CHECK_FALSE(other.takes_pointers);
  CHECK(other.reason == "MPIX_GPU_query_support of Fake MPI 1 says no");
  CHECK_FALSE(decided({nullptr, &gpu_query_support<0, 13>}).takes_pointers);
  CHECK_FALSE(decided({&query_cuda_support<0>, &gpu_query_support<0, 0>}).takes_pointers);
  CHECK(queries == 1);
}

TEST_CASE("mpi cuda: on and off ask nobody") {
  const MpiCudaDecision on = decided({&query_cuda_support<0>, nullptr}, "on");
  CHECK(on.takes_pointers);
  CHECK(on.reason == "RINGREDUCE_MPI_CUDA=on");
  CHECK(queries == 0);
  const MpiCudaDecision off = decided({&query_cuda_support<1>, nullptr}, "off");
  CHECK_FALSE(off.takes_pointers);
  CHECK(off.reason == "RINGREDUCE_MPI_CUDA=off");
  CHECK(queries == 0);
}

TEST_CASE("mpi cuda: before MPI_Init and after MPI_Finalize nobody is asked") {
  FakeMpi mpi;
  mpi.cuda = {&query_cuda_support<1>, nullptr};
  queries = 0;
  mpi.is_initialized = false;
  CHECK_FALSE(mpi_cuda(mpi, "auto").takes_pointers);
  mpi.is_initialized = true;
  mpi.is_finalized = true;
  CHECK_FALSE(mpi_cuda(mpi, "auto").takes_pointers);
  CHECK(mpi_cuda(mpi, "auto").reason == "Fake MPI 1 is not initialised, so it cannot be asked");
  CHECK(queries == 0);
}

}  // namespace
}  // namespace rr
