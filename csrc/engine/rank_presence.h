// What processes outside the job see of this rank: the world's control segment, in which the rank says who it is and
// what it waits for, and which they find by the descriptor that the rank holds open (segment_view.h).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/peer_watch.h"
#include "negotiation/segment/control_segment.h"
#include "os/fd.h"

namespace rr {

class RankPresence {
 public:
  // fd: of the world's control segment, on this host.
  RankPresence(int fd, int rank) : memory_(Fd::duplicate(fd)), rank_(rank) {}

  struct Identity {
    const std::string& hostname;
    const std::string& context;         // its name; "": the job's own
    const std::vector<int>& job_ranks;  // by its ranks; empty: they are the job's
    uint64_t plan_hash;
  };
  // Before another rank looks at the segment, and before tell_wait().
  void identify(const ControlSegment& control, const Hosts& hosts, const Identity& identity);
  // Once all ranks are there: who holds the descriptor open and goes has not left.
  void hold(PeerWatch& peers) const;
  // What this rank waits for in its so many-th wait (WaitLine), and which world ranks it misses. From any thread.
  void tell_wait(uint64_t wait, const std::string& text, const std::vector<int>& missing);

  int memory() const { return memory_.get(); }  // the descriptor; -1 once it is closed
  void close() { memory_.reset(); }

 private:
  Fd memory_;
  const int rank_;
  const ControlSegment* control_ = nullptr;
  std::mutex telling_wait_;
};

}  // namespace rr
