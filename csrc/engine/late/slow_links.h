// Which links between hosts hold up the job: a judgement on what each carries in the time in which it is busy.
//
// A ring, or an exchange in pairs, goes at the pace of its slowest link: that is busy most of the time, and carries
// fewer bytes meanwhile than the others, which wait for bytes. Where all are alike, the network is the limit, and no
// link is slow.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "negotiation/segment/control_segment.h"
#include "negotiation/segment/hosts.h"

namespace rr {

class SlowLinks {
 public:
  // From a host to another one, so far.
  struct Link {
    int from = 0;
    int to = 0;
    uint64_t nbytes = 0;
    uint64_t busy_ns = 0;
  };
  struct Found {
    int from = 0;
    int to = 0;
    double share = 0;        // of the window's time it was busy
    double rate = 0;         // bytes a second, while it was
    double others_rate = 0;  // likewise of the slowest other link; infinite: none was busy
    double window_s = 0;
  };

  // share: of the time, from 0 to 1, from which on a link is worth a warning.
  explicit SlowLinks(double share) : share_(share) {}

  // links: always the same ones, in the same order. About once a second.
  void add(int64_t now_ns, std::vector<Link> links);
  // Those that are slow, as far as the last ten seconds tell.
  std::vector<Found> slow_now() const;
  // Those that are worth a warning now; none for a minute after one.
  std::vector<Found> find(int64_t now_ns);

 private:
  struct Sample {
    int64_t at_ns;
    std::vector<Link> links;
  };
  // What a link did between two samples.
  struct Use {
    double share = 0;
    double nbytes = 0;
    double rate = 0;  // infinite where it was never busy
  };
  static Use use(const Link& begin, const Link& end, double window_ns);
  std::vector<Found> slow_between(const Sample& begin, const Sample& end) const;

  const double share_;
  std::deque<Sample> window_;
  int64_t last_warning_ns_ = -1;  // -1: never
};

// From one host to each other one, as far as this one knows. control: the world's.
std::vector<SlowLinks::Link> links_from(int from, const ControlSegment& control, const Hosts& hosts);
// Of all hosts; none on one host.
std::vector<SlowLinks::Link> links_of(const ControlSegment& control, const Hosts& hosts);

}  // namespace rr
