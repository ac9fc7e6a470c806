// Connections that were dropped while something that was sent had not come to the peer's machine yet.
//
// Closing a connection on which something unread has arrived takes back what has not reached the peer's machine. So who
// drops one waits until the peer's machine has everything, and takes what comes from there meanwhile: where both sides
// drop a connection that is full both ways, each would wait for the other otherwise.
#pragma once

#include <cstdint>
#include <map>

#include "os/owned_fd.h"
#include "os/tcp/acknowledged.h"

namespace rr {

class Closings {
 public:
  // A peer's machine that acknowledges nothing for so long gets nothing more. One whose process has stopped
  // acknowledges that it has no room, and is waited for.
  explicit Closings(int lost_after_ms) : lost_after_ns_(lost_after_ms * int64_t{1'000'000}) {}

  void add(OwnedFd socket);  // nothing more is sent on it
  // Looks at those that are due: the longer one takes, the less often.
  void look();
  int64_t next_look_ns() const;  // INT64_MAX: there are none
  bool empty() const { return closings_.empty(); }

 private:
  struct Closing {
    OwnedFd socket;
    int64_t began_ns;
    int64_t due_ns;
    Acknowledged acknowledged;
  };
  const int64_t lost_after_ns_;
  std::map<int, Closing> closings_;  // by descriptor
};

}  // namespace rr
