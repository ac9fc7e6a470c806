// Operations that take long: where the ranks stand that they wait for, and a warning before the timeout.
//
// The ranks are asked shortly before the warning, or the timeout, is due, so that their answers are there in time.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/group/group_parts.h"
#include "operations/usual_waits.h"

namespace rr {

// Of a rank none of whose threads has looked around for so long: three times the engine's pause between two looks.
inline constexpr double kUnresponsiveS = 0.75;

class LateOperations {
 public:
  explicit LateOperations(const GroupParts& parts) : parts_(parts) {}

  // At an operation that is under way, a few times a second: asks, and warns, each in its time. From any
  // thread.
  void look(Operation& operation, double age_s);
  // What the ranks that it waits for have answered: sentences, each with a space before it. Empty: it waits for none.
  std::string where_they_stand(const Operation& operation) const { return where_they_stand(waits_for(operation)); }
  // World ranks of the leaders of other hosts that have not answered for 2 s. They are asked before the timeout of an
  // operation that every rank has announced.
  std::vector<int> silent_leaders() const;

 private:
  struct Question {
    uint64_t number = 0;   // 0: never asked
    uint64_t earlier = 0;  // the one before, whose answer is better than none
    int64_t asked_ns = 0;
  };

  std::vector<int> waits_for(const Operation& operation) const;
  std::vector<int> leaders_elsewhere() const;  // world ranks
  // ranks: what waits_for() has said of the operation at this look.
  void ask(const std::vector<int>& ranks, size_t most = kShownRanks);
  Question asked_of(int world_rank) const;  // mutex_ held
  bool is_answer_awaited(const std::vector<int>& ranks) const;
  double late_after_s(const Operation& operation, const std::vector<int>& ranks, double age_s);
  bool is_told(const Operation& operation, const std::vector<int>& ranks);
  bool is_for_this_rank_to_say(Operation& operation, const std::vector<int>& ranks, double overdue_s) const;
  std::string where_they_stand(const std::vector<int>& ranks) const;
  std::string silence_of(int world_rank) const;
  void warn(const Operation& operation, const std::vector<int>& ranks, double age_s) const;

  const GroupParts& parts_;
  UsualWaits usual_;
  mutable std::mutex mutex_;         // guards what follows
  std::vector<Question> questions_;  // by world rank
  std::vector<int> told_ranks_;      // whom the last warnings were about
  int64_t told_ns_ = 0;              // when the last one was said
};

}  // namespace rr
