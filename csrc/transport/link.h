// The seam between algorithms and transports: one edge between this rank and one peer, both directions.
//
// Bytes arrive in the order pushed. Calls never block and return the bytes moved (0 = nothing possible now); a byte
// counts as pushed only when its source may be reused. What was offered and has not moved is offered again, unchanged
// and perhaps with more behind it, before anything else. One thread at a time uses a link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "data/reduction.h"
#include "os/bell.h"

namespace rr {

class MpiCommunicator;

inline constexpr int kChannels = 2;  // of a group's links between two ranks: 0 collectives, 1 send/recv

class Link {
 public:
  virtual ~Link() = default;
  virtual size_t push(const void* src, size_t nbytes) = 0;
  virtual size_t pull(void* dst, size_t nbytes) = 0;
  // dst = op(dst, incoming) over whole elements; nbytes is a multiple of the item size, so is the result.
  virtual size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) = 0;
  // Whether the peer has been found to take nothing more. Calls throw PeerLostError only some time later, within which
  // the reason may come another way; who leaves need not wait for that.
  virtual bool has_ended() const { return false; }
  // Why nothing comes any more from a peer that has left, once a call that wanted bytes has found that. "": not found.
  virtual std::string why_cut() const { return ""; }
  // Whether bytes that were pushed have not left this host: the network does not take more. False where the transport
  // does not know. From any thread.
  virtual bool has_unsent() const { return false; }
  // Whether the transport notes when bytes arrive, from now on. Off at first.
  virtual void note_arrivals(bool /*wanted*/) {}
  // By the clock of now_ns(): what was pulled last had arrived by then. 0: the transport does not know.
  virtual int64_t arrived_ns() const { return 0; }
};

// Shared memory: two byte rings of `capacity` bytes each, zero-filled at first use; the memory outlives the link.
// peer_bell is rung after every move. capacity is a multiple of 4096.
size_t shm_link_nbytes(size_t capacity);
std::unique_ptr<Link> shm_link(std::byte* outgoing, std::byte* incoming, size_t capacity, Bell& peer_bell);

// MPI, to the rank `peer` of the communicator. send_tag is the other end's receive_tag, and may be the same as the own
// receive_tag (0 to 2^28 - 1); both ends give the same options. A tag serves one pair of links in the life of a
// communicator: what a later pair sends may arrive while the earlier one still receives ahead, and be lost. Destroying
// a link does not take back what was pushed. mpi_communicator.h says who keeps MPI going.
struct MpiLinkOptions {
  // The most that one message carries. With what MPI adds it stays below 64 KiB, above which Open MPI's TCP asks the
  // receiver first, and waits until both ends look again (4 hosts, 1 Gbit/s, 16 MiB: 213 ms; by 256 KiB 223).
  size_t message_nbytes = size_t{63} << 10;
  size_t depth = 16;  // messages under way and receives posted ahead, each direction
};
std::unique_ptr<Link> mpi_link(std::shared_ptr<MpiCommunicator> communicator, int peer, int send_tag, int receive_tag,
                               const MpiLinkOptions& options = {});

}  // namespace rr
