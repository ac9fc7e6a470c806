#include "transport/mpi/mpi_errors.h"

#include "base/errors.h"

namespace rr {

void MpiErrors::name_rank(int rank, int size) {
  rank_ = rank;
  size_ = size;
}

std::string MpiErrors::where() const {
  return std::string("MPI (") + library_.abi() + "), rank " + std::to_string(rank_) + "/" + std::to_string(size_) +
         ": ";
}

void MpiErrors::check(int code, const std::string& call) const {
  if (code == 0) return;
  const std::string text = where() + call + " failed: " + library_.error_string(code);
  if (library_.is_process_failure(code)) throw PeerLostError(text);
  throw InternalError(text);
}

void MpiErrors::check_finalized() const {
  bool finalized = false;
  check(library_.finalized(finalized), "MPI_Finalized");
  if (finalized)
    throw ShutdownError(where() + "MPI_Finalize has been called; nothing can be sent or received any more");
}

}  // namespace rr
