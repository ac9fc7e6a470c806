// What the leader of a host does for a group on several hosts: it tells the other leaders what the ranks here announce,
// and writes what it hears into this host's control segment, as if the other hosts' ranks were here.
//
// So every host has all requests, and the negotiation works on each as on one host: an operation is complete when every
// rank's request slot says so, verdicts are functions of the request slots, and small operations end from the request
// slots after one message each way. The order of the log is the first host's, whose leader sends each entry when it
// closes it.
//
// One frame for each event, in order, over one link between each two leaders (csrc/relay/frames.h). A rank
// knows from the others' watermarks, and from what they have consumed, what it may overwrite. Both travel the same way,
// so they may be late, and are never early.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "negotiation/negotiation.h"
#include "relay/frames.h"

namespace rr {

class HostRelay {
 public:
  // make_negotiation: gives a Negotiation that writes in the name of a rank on another host. links: by host; null for
  // this one.
  HostRelay(const ControlSegment& control, const Hosts& hosts, Negotiation& own,
            const std::function<std::unique_ptr<Negotiation>(int rank)>& make_negotiation,
            std::vector<std::unique_ptr<Link>> links);

  // Executor lock held. Sends and receives what there is; true when something moved.
  bool progress();
  // The first host's leader runs an entry only when it has sent it: till then no other takes the entry's place.
  bool has_sent(uint64_t entry) const { return hosts_.mine != 0 || entry < log_sent_; }
  // Executor lock held. The first host's leader looks whether all ranks wait for what can never be complete.
  void look_for_deadlock();
  // Once this rank has left: passes on what there is until the other leaders, or everybody, have left too, for at most
  // limit_s seconds; then says that nothing more comes. MPI_Finalize may hang where messages are left that nobody has
  // taken (MPICH 4.0.2).
  void close(double limit_s, bool everybody);
  // Whether something waits for a link or for room.
  bool has_backlog() const;
  // Whether the first host's log has an entry that is not in this host's log yet.
  bool has_ordered_entries() const { return !ordered_.empty(); }

 private:
  // Bytes that wait to be sent, or to be taken up: ranks that go on without those who have joined need no answers, so
  // nothing else holds them back.
  static constexpr size_t kAhead = 1 << 20;
  struct OrderedEntry {  // an entry of the first host's log that is not in this host's yet
    uint32_t algorithm = 0;
    RankMask participants;
    std::vector<Ticket> members;
  };
  // A point that all hosts pass together. A leader says when its host has come to the point. What the host's ranks
  // announce from then on waits until all hosts have come there.
  enum class Phase { kNone, kJoinEnds, kVerdict };
  struct LeaderConnection {  // to and from another host's leader
    std::unique_ptr<Link> link;
    FrameWriter out;
    FrameReader in;
    Phase phase = Phase::kNone;                          // the point that its leader says it has come to
    std::vector<std::pair<int, Attendance>> left_after;  // ranks of its that have left since, and how
  };
  struct Sent {  // what the others know of a rank here
    uint64_t watermark = 0;
    uint64_t blocked_epoch = 0;
    bool has_joined = false;
    Attendance attendance = Attendance::kPresent;
  };
  struct Incomplete {  // an operation for the log that a rank elsewhere has announced
    int rank = 0;
    uint64_t tag = 0;
  };

  void collect();
  void collect_ranks();
  void collect_notes(int rank);
  void send_request(int rank, const Note& note);
  void send_attendance(int rank);
  bool have_all_left(bool everybody) const;
  bool is_all_sent() const;
  void send_close();
  uint64_t close_log();
  void send_log(uint64_t tail);
  template <class Fill>
  void send(FrameType type, int rank, Fill fill) {
    for (LeaderConnection& connection : connections_) {
      if (connection.link == nullptr) continue;
      connection.out.begin(type, rank);
      fill(connection.out);
      connection.out.end();
    }
  }
  bool move();
  bool receive();
  bool apply(int host, FrameParser& frame);
  void check_sender(int host, const FrameParser& frame) const;
  bool apply_request(FrameParser& frame, bool is_named);
  void apply_left(LeaderConnection& connection, FrameParser& frame);
  void check(const Signature& signature, const FrameParser& frame) const;
  void apply_entry(FrameParser& frame);
  bool repeat_ordered();
  bool is_eager(const Signature& signature, int rank, bool is_named) const;
  bool is_choked() const;
  // relay_join.cc
  bool have_drained() const;
  void send_drained();
  bool finish_join();
  void append_incomplete();
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
  std::vector<std::unique_ptr<Negotiation>> negotiations_;  // by group rank, null for ranks here
  std::vector<LeaderConnection> connections_;               // by host
  std::vector<Sent> sent_;                                  // by group rank
  std::deque<OrderedEntry> ordered_;
  uint64_t log_sent_ = 0;  // entries of the first host's log that the others have been sent
  std::unordered_map<uint64_t, Incomplete> incomplete_;  // by request slot, for the first host's log
  int last_joined_ = -1;                                 // as the first host says
  Phase phase_ = Phase::kNone;                           // the point that this host has said it has come to
  std::optional<Negotiation::Stuck> stuck_;              // of the verdict that is asked for or settled
  int votes_ = 0;                                        // of hosts, for and against
  bool refused_ = false;
  bool failure_sent_ = false;
  bool log_full_ = false;  // an operation of incomplete_ has become complete and found no room
};

}  // namespace rr
