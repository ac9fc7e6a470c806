// One message of a communicator: memory for its bytes, and the request that uses it while MPI has it.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>

#include "transport/mpi/mpi_library.h"

namespace rr {

struct MpiMessage {
  static constexpr size_t kHeaderNbytes = 8;  // the payload behind it is aligned to 64 bytes, for the kernels
  explicit MpiMessage(size_t nbytes);         // header included; at most INT_MAX
  // In somebody else's memory, such as a GPU's: no header, and nothing here touches it.
  MpiMessage(std::byte* data, size_t nbytes, std::shared_ptr<void> keep);
  std::byte* begin() const { return elsewhere != nullptr ? elsewhere : memory.get() + 64 - kHeaderNbytes; }

  std::unique_ptr<std::byte, void (*)(std::byte*)> memory;
  size_t nbytes;
  std::byte* elsewhere = nullptr;
  std::shared_ptr<void> keep;
  // The communicator's, under the library's mutex.
  enum class State { kIdle, kSending, kReceiving, kWithdrawn, kGivenUp } state = State::kIdle;
  std::exception_ptr failure;  // of one that has failed
  int64_t until_ns = 0;        // that somebody cares whether it is sent; 0: always
  MpiHandle request;
  MpiEnvelope envelope = {};
  size_t place = 0;  // among those that MPI has (mpi_pending_messages.h)
};
using MpiMessagePtr = std::shared_ptr<MpiMessage>;

}  // namespace rr
