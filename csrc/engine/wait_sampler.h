// Looks twenty times a second at who waits for whom, in all groups of a context, on the leader of each host: what
// report() counts, and the word about ranks that make the others wait again and again (late_ranks.h).
//
// A rank that is late is looked at once more 5 ms later: whether it was on a core meanwhile, waited for one, or
// neither.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/groups.h"
#include "engine/late_ranks.h"
#include "negotiation/rank_status.h"
#include "os/process_state.h"

namespace rr {

class PeerWatch;

class WaitSampler {
 public:
  struct From {
    Groups& groups;
    PeerWatch& peers;
    const RankStatuses& statuses;
    const Log& log;
    double late_share;  // of the time, from which on a rank is worth a word; 0: never
  };
  // Begins. Of a host's leader.
  explicit WaitSampler(const From& from);
  ~WaitSampler() { stop(); }
  WaitSampler(const WaitSampler&) = delete;
  WaitSampler& operator=(const WaitSampler&) = delete;
  void stop();

 private:
  struct Waits {
    std::vector<bool> waiting;  // by world rank
    std::vector<int> late;      // ranks that somebody waits for, and that wait for nobody, ascending
    uint64_t operation = 0;     // in which; any number that others do not have
  };
  struct SeenWait {
    bool is_any = false;
    int group = 0;
    Ticket ticket;
  };
  // What a late rank did between two looks within one operation.
  struct Doing {
    uint64_t operation = 0;
    int64_t looked_ns = 0;
    ProcessTimes times;
    int64_t looked_for_ns = 0;  // all of them together, and what was counted in them
    ProcessTimes sums;
  };
  struct Asked {
    LateRanks::Found found;
    uint64_t question = 0;
    int64_t asked_ns = 0;
  };

  void run();
  bool pause(int64_t ns);  // false: it is over
  Waits waits();
  bool look_at(const Waits& waits);  // true: a rank is late that was not in this operation
  void tell(const LateRanks::Found& found);
  void tell_of_asked();
  std::string word_of(const LateRanks::Found& found) const;
  std::string doing_text(int rank) const;
  SeenWait seen_wait(int rank);
  int pid_of(int rank);

  const From from_;
  const Group& world_;
  LateRanks late_ranks_;
  std::vector<Doing> doing_;  // by world rank
  std::vector<Asked> asked_;  // of other hosts, whose answers go into the word
  int64_t looked_ns_ = 0;
  int64_t waited_ns_ = 0;  // when somebody was seen to wait last
  int64_t judged_ns_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace rr
