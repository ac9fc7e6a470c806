// What a group has of the relay between hosts: a HostRelay where this rank leads its host, else its leader's bell.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "engine/group/group_parts.h"
#include "relay/host_relay.h"

namespace rr {

class GroupRelay {
 public:
  GroupRelay(const GroupParts& parts, std::unique_ptr<HostRelay> relay) : parts_(parts), relay_(std::move(relay)) {}

  bool exists() const { return relay_ != nullptr; }
  // Whether something waits for a link or for room.
  bool has_backlog() const { return backlog_.load(std::memory_order_relaxed); }
  // Whether ranks here wait for what this leader has to fetch, from a network that does not ring.
  bool must_fetch() const { return must_fetch_.load(std::memory_order_relaxed); }
  // Whether this rank has announced an operation that its leader has announced as well, and the leader has not read
  // this rank's note of it: it may compute, its call being asynchronous, and its engine sleep.
  bool is_overlooked(Ticket ticket) const;
  // A call ends. The other hosts may wait for what they have not been told, or the network for somebody who calls it:
  // then the engine of this host's leader is woken.
  void hand_over() const {
    if (has_rest()) wake_leader();
  }
  // The same of an asynchronous call, which does not wait for what it has announced.
  void hand_over(Ticket asynchronous) const;
  // The same of a call that has not waited: a leader first tells what it can.
  void tell_rest() const;

  // Executor lock held, for all below. null: none.
  HostRelay* host() const { return relay_.get(); }
  // Sends and receives what there is; true when something moved. An error ends the group.
  bool progress(bool from_engine);
  // This rank has marked that it leaves each of these groups, in this way: passes on what is left to say, for all of
  // them together, so that a leader waits once however many it leaves.
  static void close(const std::vector<GroupRelay*>& relays, Attendance how);

 private:
  void set_must_fetch(bool must, bool from_engine);
  bool has_rest() const;
  bool is_untold(int rank) const;
  bool has_leader_announced(Ticket ticket) const;
  bool is_watermark_due() const;
  void wake_leader() const;
  bool last(Attendance how, const std::function<bool(HostRelay&)>& step);
  void warn(const std::exception& error) const noexcept;

  const GroupParts& parts_;
  const std::unique_ptr<HostRelay> relay_;
  bool is_broken_ = false;  // its links, while this rank left: nothing more can be said. Executor lock held
  std::atomic<bool> backlog_{false};
  std::atomic<bool> is_patient_{false};  // all of the backlog can wait for what the ranks here announce
  std::atomic<bool> must_fetch_{false};
  std::atomic<bool> is_fetched_{false};  // by the engine, which looks again and again
  // The other hosts, or this host's leader, are told of this rank's watermark once it is so high.
  mutable std::atomic<uint64_t> watermark_due_{kWatermarkStep};
};

}  // namespace rr
