// A group's control segment as one of the ranks uses it: who the ranks are and where, the group's lock, the bells.
#pragma once

#include <functional>
#include <vector>

#include "negotiation/segment/control_segment.h"
#include "negotiation/segment/hosts.h"
#include "negotiation/segment/lock.h"

namespace rr {

// The counters of the two bells of each member, by group rank. They live in the world's segment, so that a rank in
// several groups sleeps in one place.
struct Bells {
  std::vector<Bell*> wait;
  std::vector<Bell*> engine;
};

// control, world_ranks and hosts outlive it.
class GroupSegment {
 public:
  // world_ranks: by group rank, for messages. give_up throws when the group has failed; it is called while waiting for
  // the group's lock.
  GroupSegment(const ControlSegment& control, int rank, const std::vector<int>& world_ranks, const Hosts& hosts,
               Bells bells, std::function<void()> give_up)
      : control(control),
        rank(rank),
        hosts(hosts),
        world_ranks_(world_ranks),
        bells_(std::move(bells)),
        give_up_(std::move(give_up)) {}

  const ControlSegment& control;
  const int rank;  // in the group
  const Hosts& hosts;

  int world_rank(int of_rank) const { return world_ranks_[static_cast<size_t>(of_rank)]; }
  // Of the ranks' counters of unnamed operations, when they joined or blocked.
  uint64_t largest_unnamed() const;

  // Under the group's lock.
  template <class Fn>
  auto locked(Fn fn) const {
    const SharedLockGuard guard(control.header().lock, give_up_);
    return fn();
  }

  // Of this host.
  void ring_waiters() const;       // everybody but this rank
  void ring_room_waiters() const;  // Header::room_waiters, this rank's too
  void ring_all() const;           // waiters and engines, this rank's too
  void ring_engines(const RankMask& mask) const;

 private:
  const std::vector<int>& world_ranks_;
  Bells bells_;
  std::function<void()> give_up_;
};

}  // namespace rr
