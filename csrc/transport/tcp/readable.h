// Which connections of links have something to read.
//
// Who waits looks at all links again and again, and most of the time nothing has come. Where there are many, one
// question to the kernel is for all of them; of a few, each is asked for its bytes (with the question over without, 8
// hosts of one rank on 2 cores: time of a call for 8 B 0.8, for 64 KiB 0.86; CPU time 0.8 and 0.84).
//
// Its epoll is not that of Arrivals: what one thread has seen here, another one that sleeps is still rung for there.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "os/epoll.h"

namespace rr {

class Readable {
 public:
  // Of a connection.
  class Flag {
   public:
    explicit Flag(Readable& all) : all_(all) {}
    // Whether something may have come since it was taken last. What comes after that raises it again. One thread at a
    // time, as of a link.
    bool take();
    // Not all that was there has been read.
    void put_back() { is_up_.store(true); }

   private:
    friend class Readable;
    Readable& all_;
    std::atomic<bool> is_up_{true};
    std::atomic<bool> is_always_up_{false};  // the end is read behind the last bytes, and is no news then
    uint64_t looks_ = 0;
  };

  // The network's thread's. The flag stays where it is, and is another connection's once it is removed: a look that is
  // under way then may leave it up for that one, which is read once more than it need be, or each time. A connection
  // that the kernel cannot watch (its limit of watches) is read each time.
  Flag& add(int fd);
  void remove(int fd, Flag& flag);

 private:
  void look();

  Epoll epoll_;
  std::atomic<size_t> count_{0};
  std::deque<Flag> flags_;
  std::vector<Flag*> free_;
  std::atomic<int64_t> looked_ns_{0};
  std::atomic<uint64_t> looks_{0};  // while there are few: so often, each may have something
};

}  // namespace rr
