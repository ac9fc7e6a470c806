// The work streams and streams of a fake GPU: queues of actions that run on a thread of their own, in an order among
// each other that a seed decides, or only when the test says advance().
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/device.h"

namespace rr::test {

class FakeWorkStreams {
 public:
  using Action = std::function<bool()>;  // false: cannot be done yet, come again

  FakeWorkStreams(uint64_t seed, bool manual) : random_(seed) {
    if (!manual) runner_ = std::thread([this] { run(); });
  }
  // Once nothing can go on.
  ~FakeWorkStreams() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (runner_.joinable()) runner_.join();
  }
  FakeWorkStreams(const FakeWorkStreams&) = delete;
  FakeWorkStreams& operator=(const FakeWorkStreams&) = delete;

  WorkStream add() {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      const WorkStream work_stream = spare_.back();
      spare_.pop_back();
      return work_stream;
    }
    work_streams_.emplace_back();
    return static_cast<WorkStream>(work_streams_.size() - 1);
  }
  void remove(WorkStream work_stream) {
    const std::lock_guard lock(mutex_);
    spare_.push_back(work_stream);
  }
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return work_streams_.size();
  }

  void push(WorkStream work_stream, Action action) {
    {
      const std::lock_guard lock(mutex_);
      WorkStreamState& state = work_streams_[static_cast<size_t>(work_stream)];
      state.queue.push_back(std::move(action));
      ++state.issued;
    }
    wake_.notify_one();
  }
  // In a stream of the caller's.
  void push(Stream stream, Action action) {
    {
      const std::lock_guard lock(mutex_);
      streams_[stream].push_back(std::move(action));
    }
    wake_.notify_one();
  }

  void begin_capture(Stream stream) {
    const std::lock_guard lock(mutex_);
    captures_.insert(stream);
  }
  void end_capture(Stream stream) {
    const std::lock_guard lock(mutex_);
    captures_.erase(stream);
  }
  bool is_capturing(Stream stream) const {
    const std::lock_guard lock(mutex_);
    return captures_.count(stream) != 0;
  }

  Mark mark(WorkStream work_stream) {
    const std::lock_guard lock(mutex_);
    WorkStreamState& state = work_streams_[static_cast<size_t>(work_stream)];
    state.marked = state.issued;
    return {work_stream, state.issued};
  }
  bool done(const Mark& mark) const {
    const std::lock_guard lock(mutex_);
    return work_streams_[static_cast<size_t>(mark.work_stream)].done >= mark.number;
  }
  void see(const Mark& mark) {
    const std::lock_guard lock(mutex_);
    WorkStreamState& state = work_streams_[static_cast<size_t>(mark.work_stream)];
    state.seen = std::max(state.seen, mark.number);
  }
  // Whether a mark has been made that nobody has seen done.
  bool is_busy() const {
    const std::lock_guard lock(mutex_);
    return std::any_of(work_streams_.begin(), work_streams_.end(),
                       [](const WorkStreamState& state) { return state.seen < state.marked; });
  }

  // Executes up to `most` actions; how many there were to execute. By one thread, and not beside a runner of its own.
  size_t advance(size_t most) {
    size_t done = 0;
    while (done < most && run_one()) ++done;
    return done;
  }

 private:
  using Queue = std::deque<Action>;
  struct WorkStreamState {
    Queue queue;
    uint64_t issued = 0, done = 0, marked = 0, seen = 0;
  };

  // Executes the first action of one queue, whichever can go on; false when none can.
  bool run_one() {
    std::vector<std::pair<Queue*, WorkStreamState*>> ready;
    {
      const std::lock_guard lock(mutex_);
      for (WorkStreamState& state : work_streams_) {
        if (!state.queue.empty()) ready.emplace_back(&state.queue, &state);
      }
      for (auto& [stream, queue] : streams_) {
        if (!queue.empty()) ready.emplace_back(&queue, nullptr);
      }
    }
    std::shuffle(ready.begin(), ready.end(), random_);
    for (auto& [queue, state] : ready) {
      Action action;
      {
        const std::lock_guard lock(mutex_);
        action = queue->front();
      }
      if (!action()) continue;
      const std::lock_guard lock(mutex_);
      queue->pop_front();
      if (state != nullptr) ++state->done;
      return true;
    }
    return false;
  }

  void run() {
    for (;;) {
      if (run_one()) continue;
      std::unique_lock lock(mutex_);
      if (stop_) return;
      wake_.wait_for(lock, std::chrono::microseconds(50));  // what an action waits for comes without a word to it
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::mt19937_64 random_;
  std::deque<WorkStreamState> work_streams_ =
      std::deque<WorkStreamState>(kWorkStreams);  // grows while the runner is at one of them
  std::vector<WorkStream> spare_;
  std::map<Stream, Queue> streams_;
  std::set<Stream> captures_;
  bool stop_ = false;
  std::thread runner_;
};

}  // namespace rr::test
