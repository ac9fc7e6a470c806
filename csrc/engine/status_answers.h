// What this rank answers to others that ask where it stands, and for a rank of its host that does not answer itself.
//
// The answer says what the rank has called last, whether its process has a core, and the line at which its program's
// main thread is. That line takes Python's lock, which the program may not give up for a long time: so a thread of its
// own fetches it, and where it does not come back the answer goes without.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "negotiation/rank_status.h"

namespace rr {

// Where the program's main thread is, in words: "is at train.py:12 in step: loss.item()". Called on a thread of the
// engine; may block as long as the program holds Python's lock. Empty: unknown.
using WhereInProgram = std::string (*)();

class StatusAnswers {
 public:
  struct From {
    const ControlSegment& world;
    const Hosts& hosts;  // of the world's ranks
    int rank;
    std::string hostname;
    std::function<std::string()> calls;  // Groups::calls_text()
    std::function<int(int)> pid_of;      // by world rank: PeerWatch::pid_of()
  };
  explicit StatusAnswers(From from);
  ~StatusAnswers() { stop(); }
  StatusAnswers(const StatusAnswers&) = delete;
  StatusAnswers& operator=(const StatusAnswers&) = delete;

  const RankStatuses& statuses() const { return statuses_; }
  void set_where(WhereInProgram where) { where_.store(where); }
  // To be called a few times a second, without the executor's lock.
  void look();
  // Nothing is answered any more. Waits for the thread, which may want Python's lock: the caller does not hold it.
  void stop();

 private:
  void answer_for_this_rank(int64_t now);
  void answer_for_silent_ranks(int64_t now);
  std::string beginning() const;

  const From from_;
  const RankStatuses statuses_;
  std::atomic<WhereInProgram> where_{nullptr};

  std::mutex looking_;  // guards all below, but for is_thread_done_
  bool is_stopped_ = false;
  bool is_any_open_ = false;
  uint32_t seen_changes_ = 0;
  std::vector<int64_t> open_since_ns_;  // by rank: since when this rank sees it owe an answer; 0: it does not
  int64_t begun_ns_ = 0;                // when the thread was
  std::thread thread_;
  std::atomic<bool> is_thread_done_{false};
};

}  // namespace rr
