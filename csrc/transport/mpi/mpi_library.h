// The functions of MPI that we call, from the MPI that mpi4py has loaded: no mpi.h, nothing linked.
//
// Every call returns MPI's own code, 0 for success; mpi_errors.h turns others into errors. A handle is typed (an
// int for MPICH, a pointer for Open MPI and for the ABI of MPI 5) in mpi_library.cc alone: here it is 8 bytes that hold
// the typed object, at an address that may be given to MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace rr {

struct MpiHandle {
  alignas(8) std::byte object[8] = {};
};

enum class MpiKind { kComm, kDatatype, kErrhandler };
enum class MpiThreads { kSingle, kFunneled, kSerialized, kMultiple };
const char* name(MpiThreads threads);  // "MPI_THREAD_SINGLE", ...

// A message of count elements to or from rank peer.
struct MpiEnvelope {
  int count;
  int peer;
  int tag;
};

struct MpiDone {
  size_t index;
  int code;
  bool is_cancelled = false;
};

// Extensions of MPI that say whether it takes pointers to GPU memory; nullptr where a library lacks one. Open MPI has
// the first, MPICH both, and MPICH's library of the standard ABI neither. To be called between MPI_Init and
// MPI_Finalize: MPIs choose their devices in the former.
struct MpiCudaCalls {
  int (*query_cuda_support)() = nullptr;                         // MPIX_Query_cuda_support: 1 = yes
  int (*gpu_query_support)(int kind, int* supported) = nullptr;  // MPIX_GPU_query_support: an error code
};

class MpiLibrary {
 public:
  // path: a library already loaded, MPI itself or one that depends on it (mpi4py.MPI.__file__). handle_size: bytes of
  // an MPI_Comm, which with the symbols tells the ABI. Throws UnavailableError, naming what is missing.
  static std::shared_ptr<MpiLibrary> open(const std::string& path, size_t handle_size);
  virtual ~MpiLibrary() = default;
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  virtual const char* abi() const = 0;  // "mpich", "openmpi" or "mpiabi"
  // value: what mpi4py's MPI._handleof gives.
  virtual MpiHandle handle(MpiKind kind, uintptr_t value) const = 0;

  virtual int initialized(bool& yes) = 0;
  virtual int finalized(bool& yes) = 0;
  virtual int query_thread(MpiThreads& threads) = 0;
  virtual int comm_rank(MpiHandle comm, int& rank) = 0;
  virtual int comm_size(MpiHandle comm, int& size) = 0;
  virtual int comm_set_errhandler(MpiHandle comm, MpiHandle errhandler) = 0;
  // duplicate is written by the time the request is complete, and has to stay where it is until then.
  virtual int comm_idup(MpiHandle comm, MpiHandle& duplicate, MpiHandle& request) = 0;
  virtual int comm_free(MpiHandle& comm) = 0;
  // Sends nbytes to each rank, from where src has them by rank, and receives as many from each.
  virtual int ialltoall(const void* src, int nbytes, void* dst, MpiHandle byte, MpiHandle comm, MpiHandle& request) = 0;
  virtual int isend(const void* buffer, MpiHandle datatype, MpiEnvelope to, MpiHandle comm, MpiHandle& request) = 0;
  // Complete once the peer has begun to receive it.
  virtual int issend(const void* buffer, MpiHandle datatype, MpiEnvelope to, MpiHandle comm, MpiHandle& request) = 0;
  virtual int irecv(void* buffer, MpiHandle datatype, MpiEnvelope from, MpiHandle comm, MpiHandle& request) = 0;
  virtual int test(MpiHandle& request, bool& done) = 0;
  // Tests all at once: MPI works once, however many there are. done: those that are complete, or have failed, by
  // index, each with its own code. The rest stay as they are.
  virtual int test_some(const std::vector<MpiHandle>& requests, std::vector<MpiDone>& done) = 0;
  virtual int cancel(MpiHandle& request) = 0;

  virtual MpiCudaCalls cuda_calls() const = 0;
  virtual std::string version() const = 0;  // as the library names itself: "Open MPI v5.0.11", "MPICH Version: 5.0.2"

  virtual std::string error_string(int code) = 0;
  // The code says that a process has failed (the classes of ULFM), where the ABI has numbers for that.
  virtual bool is_process_failure(int code) = 0;

  // Held around every call that communicates, by all communicators of the process: MPI_THREAD_SERIALIZED is enough.
  std::mutex& mutex() { return mutex_; }
  // Under the mutex: memory that MPI may still read or write. It is kept as long as this object, which is why whoever
  // opens a library keeps it until the process ends.
  void leave(std::shared_ptr<void> memory) { left_.push_back(std::move(memory)); }

 protected:
  MpiLibrary() = default;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> left_;
};

}  // namespace rr
