// What the leader of a host does for a group on several hosts: it tells the other leaders what they have to know of the
// ranks here, and writes what it hears into this host's control segment, as if the other hosts' ranks were here.
//
// Quick operations travel with their data, to every host, and end from the request slots after one message each way.
// Requests for the log go to the first host alone (own_requests.h). It decides about each operation that all ranks have
// announced (sequencer.h), and the other hosts follow (decisions.h). That a rank waits, has joined or left is sent to
// every host, after all that the rank has announced and nobody has decided.
//
// Frames go in order over one link between each two leaders (frames.h). What a host knows of a rank elsewhere may be
// late, and is never early.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "relay/decisions.h"
#include "relay/leader_links.h"
#include "relay/own_requests.h"
#include "relay/sequencer.h"

namespace rr {

class HostRelay {
 public:
  // links: by host; null for this one. late_s: after so long an operation is shown to all hosts, whose messages say who
  // is missing.
  HostRelay(const ControlSegment& control, const Hosts& hosts, Negotiation& own,
            std::vector<std::unique_ptr<Link>> links, double late_s);

  // Executor lock held. Sends and receives what there is; true when something moved.
  bool progress();
  // The first host's leader runs an entry only when it has sent it: till then no other takes the entry's place.
  bool has_sent(uint64_t entry) const { return hosts_.mine != 0 || sequencer_.has_sent(entry); }
  // Executor lock held. The first host's leader looks whether all ranks wait for what can never be complete.
  void look_for_deadlock();
  // Once this rank has left: passes on what there is. Says whether the other leaders, or everybody, have left too and
  // nothing is left to send.
  bool pass_on(bool everybody);
  // Afterwards: says to ranks that are still at work that nothing more comes, which flush() sends. True: sent.
  void send_close();
  bool flush();
  // Whether something waits for a link or for room.
  bool has_backlog() const;
  // Whether the first host's log has an entry that is not in this host's log yet.
  bool has_ordered_entries() const { return !decisions_.is_empty(); }

 private:
  struct Sent {  // what the others know of a rank here
    uint64_t watermark = 0;
    uint64_t blocked_epoch = 0;
    bool has_joined = false;
    Attendance attendance = Attendance::kPresent;
  };

  // host_relay.cc
  void collect();
  void collect_ranks();
  void collect_notes(int rank, uint64_t end);
  void send_quick(int rank, Ticket ticket);
  void send_attendance(int rank);
  bool have_all_left(bool everybody) const;
  bool is_all_sent() const;
  bool is_choked() const;
  bool is_eager(const Signature& signature, int rank, bool is_named) const;
  // relay_receive.cc
  bool receive();
  bool apply(int host, FrameParser& frame);
  void check_sender(int host, const FrameParser& frame) const;
  bool apply_quick(FrameParser& frame, bool is_named);
  bool apply_logged(int host, FrameParser& frame);
  bool apply_decision(int host, FrameParser& frame);
  void look_ahead(int host);
  bool may_decide() const;
  void apply_left(LeaderConnection& connection, FrameParser& frame);
  void apply_failure(FrameParser& frame);
  // relay_join.cc
  bool have_drained() const;
  void send_drained();
  bool finish_join();
  bool all_are_at(Phase phase) const;
  void leave_phase();
  // relay_deadlock.cc
  void send_block(int rank, uint64_t epoch);
  void apply_block(FrameParser& frame);
  void apply_freeze(FrameParser& frame);
  void apply_vote(FrameParser& frame);
  void apply_verdict(LeaderConnection& connection, FrameParser& frame);
  void decide(bool stuck);
  bool finish_verdict();

  const ControlSegment& control_;
  const Hosts& hosts_;
  Negotiation& own_;
  LeaderLinks links_;
  OwnRequests own_requests_;
  Sequencer sequencer_;                      // of the first host
  Decisions decisions_;                      // of the others
  std::vector<Sent> sent_;                   // by group rank
  Phase phase_ = Phase::kNone;               // the point that this host has said it has come to
  std::optional<Negotiation::Stuck> stuck_;  // of the verdict that is asked for or settled
  int votes_ = 0;                            // of hosts, for and against
  bool refused_ = false;
  bool failure_sent_ = false;
};

}  // namespace rr
