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
#include <string>
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

  // Executor lock held. Sends and receives what there is; true when something moved. log_full: an operation that became
  // complete found the first host's log full, and has to be appended again.
  bool progress(bool& log_full);
  // The first host's leader runs an entry only when it has sent it: then its next statement under a name comes after
  // the entry of the last one, by which the others tell which generation the entry means.
  bool has_sent(uint64_t entry) const { return hosts_.mine != 0 || entry < log_sent_; }
  // Once this rank has left: sends what the other hosts may still need, and reads until the other leaders, or
  // everybody, have left too, for at most limit_s seconds. MPI_Finalize may hang where messages are left that nobody
  // has taken (MPICH 4.0.2).
  void part(double limit_s, bool everybody);
  // Whether something waits for a link or for room.
  bool has_backlog() const;

 private:
  struct Decision {  // an entry of the first host's log that is not in this host's yet
    uint32_t algorithm = 0;
    RankMask participants;
    std::vector<Ticket> members;
  };
  struct Line {  // to and from another host's leader
    std::unique_ptr<Link> link;
    FrameWriter out;
    FrameReader in;
  };
  struct Sent {  // what the others know of a rank here
    uint64_t watermark = 0;
    bool has_left = false;
  };

  void collect();
  void collect_notes(int rank);
  void send_statement(int rank, const Note& note);
  uint64_t close_log();
  void send_log(uint64_t tail);
  template <class Fill>
  void send(FrameType type, int rank, Fill fill);
  bool move();
  bool receive();
  bool apply(FrameParser& frame);
  bool apply_statement(FrameParser& frame, bool is_named);
  bool repeat_decisions();
  bool is_eager(const Signature& signature, int rank, bool is_named) const;

  const Board& board_;
  const Hosts& hosts_;
  Ledger& own_;
  std::vector<std::unique_ptr<Ledger>> ledgers_;  // by group rank, null for ranks here
  std::vector<Line> lines_;                       // by host
  std::vector<Sent> sent_;                        // by group rank
  std::deque<Decision> decisions_;
  uint64_t log_sent_ = 0;  // entries of the first host's log that the others have been sent
  bool failure_sent_ = false;
  bool log_full_ = false;
};

}  // namespace rr
