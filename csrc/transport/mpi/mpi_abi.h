// What differs between the ABIs of MPI, one type each: the types of handles, and numbers. What they share, such as
// MPI_SUCCESS = 0 and a status of at most 64 bytes, is written once.
#pragma once

#include <cstddef>

// The incomplete types that the headers of Open MPI and of the standard ABI point to.
struct ompi_communicator_t;
struct ompi_datatype_t;
struct ompi_errhandler_t;
struct ompi_request_t;
struct MPI_ABI_Comm;
struct MPI_ABI_Datatype;
struct MPI_ABI_Errhandler;
struct MPI_ABI_Request;

namespace rr {

struct MpichAbi {
  static constexpr const char* kName = "mpich";
  using Comm = int;
  using Datatype = int;
  using Errhandler = int;
  using Request = int;
  static constexpr int kThreads[] = {0, 1, 2, 3};
  static constexpr int kProcessFailures[] = {101, 102, 103};  // MPIX_ERR_PROC_FAILED, _PENDING, MPIX_ERR_REVOKED
  static constexpr size_t kStatusNbytes = 20;
  static constexpr size_t kStatusError = 16;  // where MPI_ERROR is
};

struct OpenMpiAbi {
  static constexpr const char* kName = "openmpi";
  using Comm = ompi_communicator_t*;
  using Datatype = ompi_datatype_t*;
  using Errhandler = ompi_errhandler_t*;
  using Request = ompi_request_t*;
  static constexpr int kThreads[] = {0, 1, 2, 3};
  static constexpr int kProcessFailures[] = {74, 75, 76, 77};  // ..._ABORTED, _FAILED, _FAILED_PENDING, _REVOKED
  static constexpr size_t kStatusNbytes = 24;
  static constexpr size_t kStatusError = 8;
};

struct StandardAbi {
  static constexpr const char* kName = "mpiabi";
  using Comm = MPI_ABI_Comm*;
  using Datatype = MPI_ABI_Datatype*;
  using Errhandler = MPI_ABI_Errhandler*;
  using Request = MPI_ABI_Request*;
  static constexpr int kThreads[] = {0, 1024, 2048, 4096};
  static constexpr int kProcessFailures[] = {58};  // MPI_ERR_PROC_ABORTED; those of ULFM have no standard number
  static constexpr size_t kStatusNbytes = 32;
  static constexpr size_t kStatusError = 8;
};

struct alignas(16) MpiStatus {
  std::byte content[64];  // at least kStatusNbytes; of its fields only MPI_ERROR is read, after an error
};

}  // namespace rr
