// Whether the peer's kernel acknowledges what a connection of data has sent.
//
// TCP_USER_TIMEOUT would not do: it also ends a connection whose peer lives, and does not read for so long.
#pragma once

#include <cstdint>

namespace rr {

class Acknowledged {
 public:
  // To be called about once a second: for how long something has been on its way, and nothing was acknowledged, in
  // nanoseconds. Time in which nobody could look does not count, nor time in which the peer has no room.
  int64_t silent_ns(int fd, int64_t now_ns);

 private:
  uint64_t nbytes_ = 0;  // that had been acknowledged at the last look
  int64_t looked_ns_ = 0;
  int64_t silent_ns_ = 0;
};

}  // namespace rr
