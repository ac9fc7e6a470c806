// Where a rank stands, asked by another one that waits for it: questions and answers in the world's segment.
//
// The asked rank answers (engine/late/status_answers.h). Where it cannot, another rank of its host does. A question to
// a rank of another host, and its answer, travel between the leaders (relay/status/status_relay.h), who write them here
// as if all ranks were on one host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "negotiation/segment/control_segment.h"
#include "negotiation/segment/hosts.h"

namespace rr {

class RankStatuses {
 public:
  // Of the world, whose segment holds the bells that ring here. Both outlive this.
  RankStatuses(const ControlSegment& world, const Hosts& hosts) : world_(world), hosts_(hosts) {}

  // Asks where a rank stands, unless it is asked already. Returns the question's number, by rank from 1 on.
  uint64_t ask(int rank) const;
  // The number of the question to which the rank owes an answer; 0: none.
  uint64_t question_to(int rank) const;
  // Answers all questions to the rank up to this one. False: nothing was written, because another thread has the lock;
  // try again.
  bool answer(int rank, uint64_t question, const std::string& text) const;
  // Empty as long as there is none.
  std::optional<std::string> answer_to(int rank, uint64_t question) const;
  // Moves with each question and each answer.
  uint32_t changes() const { return world_.header().status_changes.load(std::memory_order_acquire); }

 private:
  RankStatus& line(int rank) const { return world_.status(rank); }
  void tell(int rank) const;

  const ControlSegment& world_;
  const Hosts& hosts_;
};

}  // namespace rr
