// Messages straight from and into a GPU's memory, for a transport that takes its addresses. Both ends know how long
// they are; between two ranks, those of one group arrive in the order in which they were started.
#pragma once

#include <cstddef>
#include <memory>

namespace rr {

class MpiCommunicator;

class DeviceMessages {
 public:
  // Under way. Dropped before it is done it is given up; the transport may go on in its memory, which it keeps.
  class Message {
   public:
    virtual ~Message() = default;
    virtual bool done() = 0;  // the memory is the caller's again; throws what the transport reports
  };
  virtual ~DeviceMessages() = default;
  // keep: what holds the memory. The device is the thread's current one. group: its id, the same on both ends.
  virtual std::unique_ptr<Message> send(const std::byte* src, size_t nbytes, int world_rank, int group,
                                        std::shared_ptr<void> keep) = 0;
  virtual std::unique_ptr<Message> receive(std::byte* dst, size_t nbytes, int world_rank, int group,
                                           std::shared_ptr<void> keep) = 0;
};

// By MPI_Isend and MPI_Irecv on the addresses themselves; for an MPI that takes them (mpi_cuda.h).
// most_nbytes: of one message of MPI's, whose counts are ints; longer ones go in several.
std::shared_ptr<DeviceMessages> mpi_device_messages(std::shared_ptr<MpiCommunicator> communicator,
                                                    size_t most_nbytes = size_t{1} << 30);

}  // namespace rr
