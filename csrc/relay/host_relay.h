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
#include <vector>

#include "relay/rank_news.h"
#include "relay/receiver.h"

namespace rr {

class HostRelay {
 public:
  // links: by host; null for this one. late_s: after so long an operation is shown to all hosts, whose messages say who
  // is missing. recorder: of the world's, for the clocks; null: of another group. recorded_group: the group there.
  // do_links_ring: when something arrives; else this relay remembers what its ranks await.
  HostRelay(const ControlSegment& control, const Hosts& hosts, Negotiation& negotiation,
            std::vector<std::unique_ptr<Link>> links, double late_s, Recorder* recorder = nullptr,
            const RecordedGroup& recorded_group = {}, bool do_links_ring = true);

  // Executor lock held. Sends and receives what there is; true when something moved.
  bool progress();
  // The first host's leader runs an entry only when it has sent it: till then no other takes the entry's place.
  bool has_sent(uint64_t entry) const { return !parts_.hosts.is_first() || parts_.sequencer.has_sent(entry); }
  // Executor lock held. The first host's leader looks whether all ranks wait for what can never be complete.
  void look_for_deadlock() { deadlock_.look(); }
  // Once this rank has left: passes on what there is. Says whether the other leaders, or everybody, have left too and
  // nothing is left to send.
  bool pass_on(bool everybody);
  // Afterwards: says to ranks that are still at work that nothing more comes, which flush() sends. True: sent.
  void send_close();
  bool flush();
  // Whether something waits for a link or for room.
  bool has_backlog() const;
  // Whether all that waits does so for what the ranks here will announce, for a short time.
  bool is_patient() const { return parts_.links.are_patient() && !waits_for_room(); }
  // Whether links that do not ring will bring what ranks here wait for: a quick operation that all of them have
  // announced misses ranks of other hosts.
  bool awaits_others() { return news_.awaits_others(); }
  // The other hosts are told of the leader's watermark once it is so high.
  uint64_t watermark_due() const { return news_.watermark_due(parts_.hosts.leader_here()); }
  // Whether the first host's log has an entry that is not in this host's log yet.
  bool has_ordered_entries() const { return !parts_.decisions.is_empty(); }

 private:
  void collect();
  void note_killed_leaders();
  // Whether something waits that no link holds up.
  bool waits_for_room() const;
  bool have_all_left(bool everybody) const;
  bool is_all_sent() const;

  RelayParts parts_;
  RelayDeadlock deadlock_;
  RelayJoin join_;
  RankNews news_;
  StatusRelay status_;
  ClockRelay clock_;
  ShownRelay shown_;
  Receiver receiver_;
};

}  // namespace rr
