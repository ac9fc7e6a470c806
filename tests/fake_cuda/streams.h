// Streams, events and graphs of the fake driver. A stream is a thread that executes its tasks in order, beside the
// others and after random pauses (FAKE_CUDA_SEED, FAKE_CUDA_JITTER_US), so that an order which nobody asked for does
// not come about by itself. Tasks synchronise with nothing but what CUDA says they do: the thread sanitizer sees the
// rest.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/cuda/driver.h"

namespace fake {

using rr::cu::Result;
using Task = std::function<void()>;

struct Graph {
  std::vector<Task> tasks;  // in the order of their issue, which agrees with what they wait for
  unsigned mode = 0;
  std::thread::id thread;
  std::atomic<bool> is_invalid{false};
};

struct Context {
  int ordinal = 0;
  std::atomic<Result> broken{rr::cu::kSuccess};  // a sticky error
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Context& context, bool is_blocking, uint64_t number);

  Context& context() const { return context_; }
  bool is_blocking() const { return is_blocking_; }  // waits for the legacy stream, and that for it
  std::shared_ptr<Graph> capture() const;
  void set_capture(std::shared_ptr<Graph> graph);

  // Into the graph of the capture if there is one.
  void issue(Task task);
  uint64_t issued() const;
  bool has_done(uint64_t number) const;
  // False when limit_s have passed.
  bool await(uint64_t number, double limit_s) const;
  // For a task of another stream: returns as well once the context is broken.
  void await_in_task(uint64_t number) const;
  void close();  // the thread ends when all is done

 private:
  void run();
  void pause();

  Context& context_;
  const bool is_blocking_;
  std::mt19937_64 random_;
  const uint64_t jitter_us_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Task> tasks_;
  uint64_t issued_ = 0;
  uint64_t done_ = 0;
  bool has_thread_ = false;
  bool is_closing_ = false;
  std::shared_ptr<Graph> capture_;
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Stream> stream;  // null: never recorded
  uint64_t number = 0;
  std::shared_ptr<Graph> capture;  // it was recorded in
};

// Polls: nobody tells a GPU that memory has changed.
Task wait_value(Context& context, const uint32_t* word, uint32_t value);

// --- the streams of the process
std::shared_ptr<Stream> new_stream(Context& context, bool is_blocking);
std::shared_ptr<Stream> find(rr::cu::Stream handle, Context& current);  // the default streams too; null: none of ours
rr::cu::Stream handle_of(const Stream& stream);
void forget(const Stream& stream);
std::vector<std::shared_ptr<Stream>> streams_of(const Context& context);
// What CUDA does behind cuMemFree and its like. Ends the process when that takes 20 s: something waits for its waiter.
void synchronize(const Context& context, const char* call);
// Issues with what the legacy stream and blocking streams wait for of each other.
Result issue(const std::shared_ptr<Stream>& stream, Task task);

// --- captures
void begin_capture(const std::shared_ptr<Stream>& stream, unsigned mode);
std::shared_ptr<Graph> end_capture(const std::shared_ptr<Stream>& stream);
unsigned exchange_capture_mode(unsigned mode);  // of this thread
// For calls that CUDA forbids while a capture is under way: kStreamCaptureUnsupported, and the capture is lost.
Result forbidden_in_capture();

}  // namespace fake
