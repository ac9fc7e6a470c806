// Connections that were dropped while something that was sent had not come to the peer's machine yet.
//
// Closing a connection on which something unread has arrived takes back what has not reached the peer's machine. So who
// drops one waits until the peer's machine has everything, and takes what comes from there meanwhile: where both sides
// drop a connection that is full both ways, each would wait for the other otherwise.
#pragma once

#include <cstdint>
#include <map>

#include "os/owned_fd.h"

namespace rr {

class Closings {
 public:
  static constexpr int64_t kLookNs = 1'000'000;  // look() is called so often while there are some

  void add(OwnedFd socket);  // nothing more is sent on it
  void look();
  bool empty() const { return sockets_.empty(); }

 private:
  std::map<int, OwnedFd> sockets_;  // by descriptor
};

}  // namespace rr
