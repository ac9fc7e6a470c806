// How far the clocks of two hosts are apart: while a timeline is on, the leader of each host asks the first host's
// leader for its clock. The answer says when the question came and when the answer left; the asker records when it
// asked, what the answer was and when that came. The difference of the clocks lies between the two (D. Mills, RFC 5905,
// section 8); whoever reads the timelines takes the narrowest bounds. Over TCP, a message comes when the kernel says:
// threads that must wake up for it make the bounds no wider.
#pragma once

#include <cstdint>
#include <vector>

#include "negotiation/segment/hosts.h"
#include "recorder/recorder.h"
#include "relay/leader_links.h"

namespace rr {

class ClockRelay {
 public:
  // recorder: null: nothing is asked. group: whose leaders these are.
  ClockRelay(const Hosts& hosts, LeaderLinks& links, Recorder* recorder, const RecordedGroup& group)
      : hosts_(hosts), links_(links), recorder_(recorder), group_(group) {}

  // Answers, and asks when it is time. Whoever calls it lets the links send at once.
  void collect();
  // --- what other leaders send
  void apply_question(int host, FrameParser& frame);
  void apply_answer(FrameParser& frame);

 private:
  struct Question {
    int host;
    int64_t came_ns;
  };
  void note_arrivals(bool wanted);
  int64_t arrived_ns(int host) const;
  void ask();
  void answer();

  const Hosts& hosts_;
  LeaderLinks& links_;
  Recorder* const recorder_;
  const RecordedGroup group_;
  bool notes_arrivals_ = false;
  std::vector<Question> questions_;
  uint32_t timeline_ = 0;  // that was on last
  int64_t asked_ns_ = 0;   // 0: every question is answered
  int left_ = 0;           // questions of this round
  int64_t next_round_ns_ = 0;
};

}  // namespace rr
