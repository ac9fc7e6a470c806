// What this rank answers to others that ask where it stands, and for a rank of its host that does not answer itself.
//
// The answer says what the rank has called last, whether its process has a core, and the line at which its program's
// main thread is. That line takes Python's lock, which the program may not give up for a long time, and a file, whose
// disk may hang: so a thread of its own fetches it, and where it does not come back the answer goes without.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "negotiation/rank_status.h"

namespace rr {

// Where the program's main thread is, in words: "is at train.py:12 in step". Called on a thread of the engine; may
// block for ever. Calls known() with what it knows once it has Python's lock, with "", and again with more.
using WhereInProgram = void (*)(const std::function<void(const std::string&)>& known);

class StatusAnswers {
 public:
  struct From {
    const ControlSegment& world;
    const Hosts& hosts;  // of the world's ranks
    int rank;
    std::string hostname;
    std::function<std::string()> calls;      // Groups::calls_text()
    std::function<int(int)> pid_of;          // by world rank: PeerWatch::pid_of()
    std::function<std::string()> late_here;  // of a host's leader: WaitSampler::late_here()
  };
  explicit StatusAnswers(From from);
  StatusAnswers(const StatusAnswers&) = delete;
  StatusAnswers& operator=(const StatusAnswers&) = delete;

  const RankStatuses& statuses() const { return statuses_; }
  void set_where(WhereInProgram where) { where_.store(where); }
  // To be called a few times a second, without the executor's lock. Throws nothing: no job ends because of a question.
  void look() noexcept;
  // Nothing is answered any more. Waits for the thread, for two seconds: it may want Python's lock, which the caller
  // does not hold. One that hangs, in Python or on a disk, is left behind.
  void stop();

 private:
  // What the thread has found so far. It may outlive the context.
  struct Finding {
    bool has_lock = false;
    std::string activity;
    std::string place;
    bool is_done = false;
  };
  struct OpenQuestion {
    uint64_t number = 0;
    int64_t since_ns = 0;  // when this rank saw it first
  };

  void answer_for_this_rank(int64_t now);
  void answer_for_silent_ranks(int64_t now);
  void begin_to_find();
  std::string text(const Finding& finding) const;

  const From from_;
  const RankStatuses statuses_;
  std::atomic<WhereInProgram> where_{nullptr};

  std::mutex looking_;  // guards all below
  bool is_stopped_ = false;
  bool is_any_open_ = false;
  uint32_t seen_changes_ = 0;
  std::vector<OpenQuestion> open_;  // by rank
  std::string calls_;               // when the thread was started
  int64_t begun_ns_ = 0;
  uint64_t question_ = 0;                      // for which it was
  std::shared_ptr<Guarded<Finding>> finding_;  // null: there is no thread
};

}  // namespace rr
