// What the leader of a host does for a group on several hosts: it tells the other leaders what the ranks here state,
// and writes what it hears into this host's control segment, as if the other hosts' ranks were here.
//
// So every host has all statements, and the ledger works on each as on one host: an operation is complete when every
// rank's cell says so, verdicts are functions of the cells, and small operations end from the cells after one message
// each way. The order of the log is the first host's, whose leader sends each entry when it closes it.
//
// One frame for each event, in order, over one link between each two leaders (csrc/engine/frames.h). What a rank may
// overwrite it knows from the others' watermarks and notes, which travel the same way, so it may be late, never early.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/frames.h"
#include "group/ledger.h"

namespace rr {

class Mirror {
 public:
  // make_ledger: of a rank on another host, to write in its name. control: by host, null for this one.
  Mirror(const Board& board, const Hosts& hosts, Ledger& own,
         const std::function<std::unique_ptr<Ledger>(int rank)>& make_ledger,
         std::vector<std::unique_ptr<Link>> control);

  // Executor lock held. Sends and receives what there is; true when something moved.
  bool progress();
  // The first host's leader runs an entry only when it has sent it: till then no other takes the entry's place.
  bool has_sent(uint64_t entry) const { return hosts_.mine != 0 || entry < log_sent_; }
  // Executor lock held. The first host's leader looks whether all ranks wait for what can never be complete.
  void look_for_deadlock();
  // Once this rank has left: passes on what there is until the other leaders, or everybody, have left too, for at most
  // limit_s seconds; then says that nothing more comes. MPI_Finalize may hang where messages are left that nobody has
  // taken (MPICH 4.0.2).
  void part(double limit_s, bool everybody);
  // Whether something waits for a link or for room.
  bool has_backlog() const;
  // Whether the first host has put something in order that is not in this host's log yet.
  bool has_decisions() const { return !decisions_.empty(); }

 private:
  // Bytes that wait to be sent, or to be taken up: ranks that go on without those who have joined need no answers, so
  // nothing else holds them back.
  static constexpr size_t kAhead = 1 << 20;
  struct Decision {  // an entry of the first host's log that is not in this host's yet
    uint32_t algorithm = 0;
    RankMask participants;
    std::vector<Ticket> members;
  };
  // What all hosts pass together. What a host's ranks state when it has said that it is there is for afterwards.
  enum class Gate { kNone, kJoinEnds, kVerdict };
  struct Line {  // to and from another host's leader
    std::unique_ptr<Link> link;
    FrameWriter out;
    FrameReader in;
    Gate gate = Gate::kNone;                             // it has said that it is there
    std::vector<std::pair<int, Attendance>> left_after;  // ranks of its that have left since, and how
  };
  struct Sent {  // what the others know of a rank here
    uint64_t watermark = 0;
    uint64_t blocked_epoch = 0;
    bool has_joined = false;
    Attendance attendance = Attendance::kPresent;
  };
  struct Incomplete {  // an operation for the log that a rank elsewhere has stated
    int rank = 0;
    uint64_t tag = 0;
  };

  void collect();
  void collect_ranks();
  void collect_notes(int rank);
  void send_statement(int rank, const Note& note);
  void send_attendance(int rank);
  bool have_all_left(bool everybody) const;
  bool is_all_sent() const;
  void say_last_word();
  uint64_t close_log();
  void send_log(uint64_t tail);
  template <class Fill>
  void send(FrameType type, int rank, Fill fill) {
    for (Line& line : lines_) {
      if (line.link == nullptr) continue;
      line.out.begin(type, rank);
      fill(line.out);
      line.out.end();
    }
  }
  bool move();
  bool receive();
  bool apply(int host, FrameParser& frame);
  void check_sender(int host, const FrameParser& frame) const;
  bool apply_statement(FrameParser& frame, bool is_named);
  void apply_left(Line& line, FrameParser& frame);
  void check(const Signature& signature, const FrameParser& frame) const;
  void apply_entry(FrameParser& frame);
  bool repeat_decisions();
  bool is_eager(const Signature& signature, int rank, bool is_named) const;
  bool is_choked() const;
  // mirror_join.cc
  bool have_drained() const;
  void send_drained();
  bool finish_join();
  void append_incomplete();
  bool all_are_at(Gate gate) const;
  void pass_gate();
  // mirror_stuck.cc
  void send_block(int rank, uint64_t epoch);
  void apply_block(FrameParser& frame);
  void apply_freeze(FrameParser& frame);
  void apply_vote(FrameParser& frame);
  void apply_verdict(Line& line, FrameParser& frame);
  void decide(bool stuck);
  bool finish_verdict();

  const Board& board_;
  const Hosts& hosts_;
  Ledger& own_;
  std::vector<std::unique_ptr<Ledger>> ledgers_;  // by group rank, null for ranks here
  std::vector<Line> lines_;                       // by host
  std::vector<Sent> sent_;                        // by group rank
  std::deque<Decision> decisions_;
  uint64_t log_sent_ = 0;  // entries of the first host's log that the others have been sent
  std::unordered_map<uint64_t, Incomplete> incomplete_;  // by cell, for the first host's log
  int last_joined_ = -1;                                 // as the first host says
  Gate gate_ = Gate::kNone;                              // this host has said that it is there
  std::optional<Ledger::Stuck> stuck_;                   // of the verdict that is asked for or settled
  int votes_ = 0;                                        // of hosts, for and against
  bool refused_ = false;
  bool failure_sent_ = false;
  bool log_full_ = false;  // an operation of incomplete_ has become complete and found no room
};

}  // namespace rr
