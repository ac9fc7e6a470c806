// When bytes came to this host, as the kernel notes before it wakes any thread for them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace rr {

// Of one TCP socket. One thread at a time uses it.
class ArrivalTimes {
 public:
  // Has the kernel note arrivals on the socket, or no longer. It then notes them of all packets of this host, for some
  // 10 ns each. Where the kernel refuses, times stay unknown.
  void note(int fd, bool wanted);
  // recv(2), without waiting.
  ssize_t receive(int fd, void* dst, size_t nbytes);
  // By the clock of now_ns(): the bytes that the last receive() returned had all come by then. 0: unknown.
  int64_t latest_ns() const { return latest_ns_; }

 private:
  void look_at_clocks();

  bool is_noting_ = false;
  int64_t latest_ns_ = 0;
  int64_t ahead_ns_ = 0;   // the real-time clock, whose times the kernel notes, minus the monotonic one
  bool is_known_ = false;  // that
  bool is_sure_ = false;   // and has not changed since the look before
};

}  // namespace rr
