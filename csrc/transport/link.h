// The seam between algorithms and transports: one edge between this rank and one peer, both directions.
//
// Bytes arrive in the order pushed. Calls never block and return the bytes moved (0 = nothing possible now); a byte
// counts as pushed only when its source may be reused. One thread at a time uses a link.
#pragma once

#include <cstddef>
#include <memory>

#include "data/reduction.h"
#include "os/bell.h"

namespace rr {

class Link {
 public:
  virtual ~Link() = default;
  virtual size_t push(const void* src, size_t nbytes) = 0;
  virtual size_t pull(void* dst, size_t nbytes) = 0;
  // dst = op(dst, incoming) over whole elements; nbytes is a multiple of the item size, so is the result.
  virtual size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) = 0;
};

// Shared memory: two byte rings of `capacity` bytes each, zero-filled at first use; the memory outlives the link.
// peer_bell is rung after every move. capacity is a multiple of 4096.
size_t shm_link_nbytes(size_t capacity);
std::unique_ptr<Link> shm_link(std::byte* outgoing, std::byte* incoming, size_t capacity, Bell& peer_bell);

}  // namespace rr
