// Looks twenty times a second at who waits for whom, in all groups of a context, on the leader of each host: what
// report() counts, and the warning about ranks that make the others wait again and again (late_ranks.h).
//
// The waits of a host's ranks are seen there only. A leader judges the ranks of its host; the first host's leader also
// other hosts, each as a whole, under the number of its leader: of an operation of the log it hears when all ranks of
// the other host have announced it. That leader, asked where it stands, says who is late there.
//
// On the first of several hosts it also judges the links between them, of which each host tells once a second. While a
// timeline is on, each host's leader records what its links carry.
//
// A rank that is late is looked at once more 5 ms later: whether it was on a core meanwhile, waited for one, or
// neither.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "engine/groups.h"
#include "engine/late/late_activity.h"
#include "engine/late/late_ranks.h"
#include "engine/late/link_records.h"
#include "engine/late/slow_links.h"
#include "negotiation/rank_status.h"

namespace rr {

class PeerWatch;
class RemoteLinks;

class WaitSampler {
 public:
  struct From {
    Groups& groups;
    PeerWatch& peers;
    RemoteLinks& links;  // of this rank, which speaks for its host: its ranks share the network
    const RankStatuses& statuses;
    const Log& log;
    Recorder& recorder;
    double late_share;  // of the time, from which on a rank is worth a warning; 0: never
    // Whether this process has no other context, whose waits this one does not see. Where it has, nobody is named.
    bool (*is_only_context)();
  };
  // Begins, unless there is no thread to be had: then nothing is sampled. Of a host's leader.
  explicit WaitSampler(const From& from);
  ~WaitSampler() { stop(); }
  WaitSampler(const WaitSampler&) = delete;
  WaitSampler& operator=(const WaitSampler&) = delete;
  void stop();
  // "rank 3 is late: ...", of a rank of this host; "": none is. From any thread.
  std::string late_here() { return *late_here_.lock(); }

 private:
  struct Waits {
    std::vector<bool> is_waiting;       // by world rank
    std::vector<LateRanks::Late> late;  // whom most of the others wait for, and who wait for nobody; by rank
  };
  struct SeenWait {
    bool is_any = false;
    int group = 0;
    Ticket ticket;  // tag 0: for something else than an operation
  };
  struct Asked {
    LateRanks::Found found;
    uint64_t question = 0;
    int64_t asked_ns = 0;
  };

  void run();
  bool pause(int64_t ns);  // false: it is over
  void sample();
  Waits waits();
  SeenWait seen_wait(int rank);
  bool is_here(int rank) const { return world_.hosts().is_here(rank); }
  void judge(int64_t now_ns);
  void show(const std::string& late_here);
  void judge_links(int64_t now_ns);
  std::string text_of(const std::vector<SlowLinks::Found>& links) const;
  std::string hostname_of(int host) const;
  void tell(const LateRanks::Found& found);
  void tell_of_asked(int64_t now_ns);
  std::string text_of(const LateRanks::Found& found) const;

  const From from_;
  const Group& world_;
  LateRanks late_ranks_;
  SlowLinks slow_links_;
  LinkRecords link_records_;
  Guarded<std::string> late_here_;
  LateActivity activity_;
  std::vector<Asked> asked_;  // of other hosts, whose answers go into the warning
  std::minstd_rand random_;
  int64_t looked_ns_ = 0;
  int64_t waited_ns_ = 0;      // when somebody was known to wait last
  uint64_t waits_so_far_ = 0;  // of all ranks of the host, as WaitLine counts them
  int64_t judged_ns_ = 0;
  int64_t links_looked_ns_ = 0;
  std::string slow_links_text_;  // on the first of several hosts: which are slow now
  std::string shown_;            // as LateText

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace rr
