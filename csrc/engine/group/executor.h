// Executes the log of a group on this rank, one entry after the other, and moves its messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/group/members.h"
#include "operations/submitted.h"
#include "planner/planner.h"
#include "relay/host_relay.h"

namespace rr {

// The context's executor lock is held, but in retry_append().
class Executor {
 public:
  Executor(const Resources& from, Negotiation& negotiation, const Members& members, Guarded<Submitted>& submitted,
           const PendingCounts& counts)
      : from_(from),
        negotiation_(negotiation),
        members_(members),
        submitted_(submitted),
        counts_(counts),
        planner_(from) {}

  // Does what can be done now, up to a few chunks; true when something moved. from_engine: nobody waits. relay: of a
  // leader, whose entries begin when the other hosts have been told of them; null: no leader of several hosts.
  bool step(bool from_engine, const HostRelay* relay);
  bool deliver_messages();  // true when bytes moved
  // A complete operation has found the log full, or has become complete without this rank: step() appends it.
  void retry_append() { retry_append_.store(true); }
  // When step() from the engine should look again at an open bucket; INT64_MAX = never.
  int64_t linger_until_ns() const { return linger_until_ns_; }
  // Whether the entry under way still needs something of a rank.
  bool needs(int rank) const;
  // Why the entry under way will not get what a rank has sent for it that has left since. "": that is not so.
  std::string why_cut(int rank) const;
  // Whether a library prepares something on the GPU; it rings no bell.
  bool must_poll_device() const { return planner_.on_device().must_poll(); }
  bool waits_on_device_for_peers() const { return planner_.on_device().waits_for_peers(); }
  // The operations of the entry under way have failed: nothing more is done for them.
  void drop();
  // The same, for good.
  void close();

 private:
  // An entry that the GPU is at, after the host has told it all. The next one need not wait for it.
  struct Issued {
    uint64_t position = 0;
    std::unique_ptr<Algorithm> algorithm;
    std::vector<OperationPtr> members;
  };

  bool needs(int rank, uint64_t from) const;  // for an entry from that place of the log on
  bool step_entry(bool from_engine, const HostRelay* relay);
  bool end_issued();
  void append_complete();
  bool wants_bucket(bool from_engine);
  bool start_entry(Entry& entry);
  void withdraw_memory();
  void skip_entry(Entry& entry);
  bool fail_if_memory_is_gone();
  bool fail_if_somebody_is_gone(uint64_t position, const Operation& needing, bool only_here) const;
  void finish_entry();
  void end_members(const std::vector<OperationPtr>& members, const std::string& failure);
  void go_on();
  void publish_ended();

  const Resources& from_;
  Negotiation& negotiation_;
  const Members& members_;
  Guarded<Submitted>& submitted_;
  const PendingCounts& counts_;
  Planner planner_;
  std::unique_ptr<Algorithm> active_;
  std::vector<OperationPtr> active_members_;
  std::deque<Issued> issued_;  // in the order of the log
  size_t active_rounds_ = 0;
  uint64_t cursor_ = 0;        // the entry under way, or the next one
  int64_t busy_since_ns_ = 0;  // the GPU has had no memory for the next entry; 0: it has not been asked, or had some
  uint64_t rounds_base_ = 0;   // rounds of the stage that the entries before have used
  int64_t linger_until_ns_ = INT64_MAX;
  std::atomic<bool> retry_append_{false};
};

}  // namespace rr
