// The world's segment of a job, read by a process that is none of its ranks. It maps the memory for reading alone,
// takes no lock, wakes nobody, and believes nothing that it reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "negotiation/segment/control_segment.h"

namespace rr {

class SegmentView {
 public:
  struct Wait {
    std::string kind;          // of the operation, "allreduce"; "": it waits for something else
    std::string text;          // what it waits for; "": it has not said
    std::vector<int> missing;  // ranks that have not announced the operation, as far as the rank knows
  };
  struct LinkTo {
    int host = 0;
    uint64_t nbytes = 0;
    double busy_s = 0;  // so long bytes have waited for the link
  };
  struct Rank {
    int host = 0;
    std::string hostname;  // "": nothing is known of the rank but this line and the next three
    int job_rank = 0;      // among the job's ranks
    Attendance attendance = Attendance::kAbsent;
    bool has_joined = false;
    std::string cause;  // why it has left; "": it has not said
    double age_s = 0;   // of what follows: of a rank elsewhere, which tells the first host each second
    int pid = 0;        // as the rank sees it; 0: it has not come
    std::optional<Wait> wait;
    double waited_s = 0;     // for others, since init()
    double late_s = 0;       // others of its host have waited for it; of a rank elsewhere as old as the rest
    double seen_late_s = 0;  // this host's ranks have waited for its host, as of now; on the first host, of the lowest
                             // rank of another one
    std::vector<std::pair<const char*, uint64_t>> stats;
    std::vector<LinkTo> links;  // to other hosts, since init()
  };
  struct Snapshot {
    double sampled_s = 0;    // of which waited_s and late_s speak
    double unsampled_s = 0;  // for so long this host's lowest rank has not looked who waits; 0: it looks, or never has
    std::string late;        // which ranks are late again and again; "": none is, or nobody looks
    std::string failure;     // why the job has failed; "": it has not
    std::vector<Rank> ranks;
  };

  // fd: of the segment. Throws InvalidArgumentError where it is none, UnavailableError where it is one of another
  // version, or its job is only beginning.
  explicit SegmentView(int fd);

  int size() const { return control_.size(); }
  int hosts() const { return hosts_; }
  int host() const { return host_; }                       // this one, by number
  const std::string& context() const { return context_; }  // "": the job's own; else which of its contexts
  Snapshot read();

 private:
  struct Head {
    int size;
    int hosts;
    int host;
    std::string context;
  };
  static Head head_of(int fd);
  SegmentView(int fd, Head head);
  Rank rank(int rank);
  Wait wait(const ShownRank& shown) const;

  ControlSegment control_;
  int hosts_;
  int host_;
  std::string context_;
  std::vector<RankElsewhere> heard_;  // the last that was read whole, by rank
};

}  // namespace rr
