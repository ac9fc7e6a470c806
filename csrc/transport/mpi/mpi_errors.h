// What MPI's error codes become: exceptions whose text begins with the MPI and the rank that called it.
#pragma once

#include <string>

#include "transport/mpi/mpi_library.h"

namespace rr {

class MpiErrors {
 public:
  explicit MpiErrors(MpiLibrary& library) : library_(library) {}
  // The rank of whoever calls, once it is known.
  void name_rank(int rank, int size);

  std::string where() const;
  // Nothing for code 0. Throws PeerLostError where MPI says that a process has failed, and InternalError with MPI's own
  // text for any other code.
  void check(int code, const std::string& call) const;
  // Throws ShutdownError after MPI_Finalize.
  void check_finalized() const;

 private:
  MpiLibrary& library_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace rr
