// Whether a TCP connection carries all that it can.
#pragma once

namespace rr {

// Whether the socket's queue has bytes that the kernel has not sent yet: the network, or the peer, does not take more.
bool has_unsent(int fd);

}  // namespace rr
