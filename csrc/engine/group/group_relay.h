// What a group has of the relay between hosts: a HostRelay where this rank leads its host, else nothing.
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
  // A call has ended at once: the other hosts are told what they may wait for, if there is anything to tell.
  void pass_on() const;

  // Executor lock held, for all below. null: none.
  HostRelay* host() const { return relay_.get(); }
  // Sends and receives what there is; true when something moved. An error ends the group.
  bool progress();
  // This rank has marked that it leaves each of these groups, in this way: passes on what is left to say, for all of
  // them together, so that a leader waits once however many it leaves.
  static void close(const std::vector<GroupRelay*>& relays, Attendance how);

 private:
  bool are_notes_read() const;
  bool last(Attendance how, const std::function<bool(HostRelay&)>& step);
  void warn(const std::exception& error) const noexcept;

  const GroupParts& parts_;
  std::unique_ptr<HostRelay> relay_;
  std::atomic<bool> backlog_{false};
};

}  // namespace rr
