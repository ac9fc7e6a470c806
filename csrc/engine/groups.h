// The groups of a rank. One thread of the rank at a time executes them: whoever waits, else the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "engine/gpu/rank_device.h"
#include "engine/group/group.h"
#include "transport/network.h"

namespace rr {

class Groups {
 public:
  // executor: the context's lock. Its holder may call Group::progress(); it guards the list of groups too.
  Groups(std::mutex& executor, const Network& network, RankDevice& gpu)
      : executor_(executor), network_(network), gpu_(gpu) {}

  // Before anything else is called, and before there is another thread.
  void set_world(std::unique_ptr<Group> world) { world_ = std::move(world); }
  bool has_world() const { return world_ != nullptr; }
  Group& world() const { return *world_; }
  void add(std::shared_ptr<Group> group);
  // Ends the group. Whoever lets go of what is returned holds no lock: unpinning the group's memory may wait for
  // streams that only the engine's thread lets go on.
  std::shared_ptr<Group> end(Group& group);
  // To keep with what may outlast the group's end. The world stays the context's.
  std::shared_ptr<Group> shared(Group& group) const;
  // Executor lock held. This rank leaves all of them. cause: what the ranks that miss this one are told; empty:
  // nothing.
  void leave(const std::string& cause) const;
  void fail(FatalKind kind, const std::string& text) const;

  // Executes one step of what there is, unless another thread of this rank does. True when something moved.
  // busy: set to whether an operation is under way, unless another thread is at work.
  bool progress(bool from_engine, bool* busy = nullptr);
  // The greatest need of a group; kOthers also while bytes are on their way, or another thread is at work.
  LinkNeed link_need() const;
  // Whether some group must go on, bytes are on their way, or another thread is at work.
  bool must_go_on() const;
  // When an open bucket is to be closed; INT64_MAX: there is none, or another thread is at work.
  int64_t linger_until_ns() const;
  // While another thread is at work: the next step of a thread begins with it.
  void housekeep();
  // What this rank has called last, in words, in the world and in the process sets that it has called something in.
  std::string calls_text() const;

  // The groups beside the world, without the executor's lock. Whoever lets go of them last holds no lock.
  std::vector<std::shared_ptr<Group>> listed() { return *listed_.lock(); }

  // Whether something that was pushed to other hosts needs looking after until it has left.
  bool is_in_transit() const { return in_transit_.load(std::memory_order_relaxed); }
  // When a thread that waits has looked at the links last, or was found to be at work; 0 without links.
  int64_t driven_ns() const { return driven_ns_.load(std::memory_order_relaxed); }

 private:
  bool must_poll_device() const;
  void keep_house();  // executor lock held
  // The world first. Executor lock held.
  template <class Do>
  void for_each(Do what) const {
    what(*world_);
    for (const std::shared_ptr<Group>& group : groups_) what(*group);
  }

  std::mutex& executor_;
  const Network& network_;
  RankDevice& gpu_;
  std::unique_ptr<Group> world_;
  std::vector<std::shared_ptr<Group>> groups_;           // beside the world
  Guarded<std::vector<std::shared_ptr<Group>>> listed_;  // the same
  std::atomic<bool> in_transit_{false};
  std::atomic<int64_t> driven_ns_{0};
  std::atomic<bool> is_housekeeping_due_{false};
};

}  // namespace rr
