// Questions where a rank of another host stands, and their answers (negotiation/rank_status.h), between the leaders of
// the world's hosts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "negotiation/rank_status.h"
#include "relay/leader_links.h"

namespace rr {

class StatusRelay {
 public:
  StatusRelay(const ControlSegment& control, const Hosts& hosts, LeaderLinks& links)
      : hosts_(hosts), links_(links), statuses_(control, hosts), asked_(static_cast<size_t>(control.size())) {}

  // Sends questions of the ranks here to the leaders of the hosts of the ranks asked, and answers of the ranks here to
  // the hosts that have asked.
  void collect();
  // --- what other leaders send
  void apply_question(int host, FrameParser& frame);
  void apply_answer(FrameParser& frame);

 private:
  void write_answers();

  struct Question {
    int host;  // that asks
    int rank;  // here
    uint64_t number;
  };

  const Hosts& hosts_;
  LeaderLinks& links_;
  const RankStatuses statuses_;
  std::vector<uint64_t> asked_;         // by rank of another host: the last question sent
  std::vector<Question> questions_;     // of other hosts
  std::map<int, std::string> answers_;  // of ranks of other hosts, that could not be written yet
  uint32_t seen_changes_ = 0;
};

}  // namespace rr
