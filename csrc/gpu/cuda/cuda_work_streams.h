// The work streams of a GPU: streams of our own, and marks in them by events that are used again.
#pragma once

#include <deque>
#include <vector>

#include "gpu/cuda/cuda_context.h"

namespace rr {

// One thread at a time, with the context current.
class CudaWorkStreams {
 public:
  explicit CudaWorkStreams(const CudaContext& context);
  ~CudaWorkStreams();
  CudaWorkStreams(const CudaWorkStreams&) = delete;
  CudaWorkStreams& operator=(const CudaWorkStreams&) = delete;

  WorkStream add();
  void remove(WorkStream work_stream) { work_stream_of(work_stream).is_spare = true; }
  size_t count() const { return work_streams_.size(); }
  cu::Stream stream(WorkStream work_stream) const { return work_stream_of(work_stream).stream; }
  Mark mark(WorkStream work_stream);
  void follow(WorkStream work_stream, const Mark& mark);
  bool passed(const Mark& mark);
  bool passes_all();  // whether every mark that has been made has passed
  bool is_busy() const;
  // The number that the next mark of the work stream will have: what has been issued up to now ends by then.
  Mark next(WorkStream work_stream) const { return {work_stream, work_stream_of(work_stream).made + 1}; }
  bool is_made(const Mark& mark) const { return mark.number <= work_stream_of(mark.work_stream).made; }
  bool seen_passed(const Mark& mark) const { return mark.number <= work_stream_of(mark.work_stream).passed; }

 private:
  struct State {
    cu::Stream stream = nullptr;
    uint64_t made = 0;
    uint64_t passed = 0;
    bool is_spare = false;
    std::deque<cu::Event> events;  // of the marks passed + 1 to made
  };
  State& work_stream_of(WorkStream work_stream) { return work_streams_.at(static_cast<size_t>(work_stream)); }
  const State& work_stream_of(WorkStream work_stream) const {
    return work_streams_.at(static_cast<size_t>(work_stream));
  }
  cu::Event event_of(const Mark& mark) const;
  bool is_over(cu::Event event);
  void take_back(State& work_stream);  // events of marks that have passed, oldest first
  void destroy() noexcept;

  const CudaContext& context_;
  int priority_ = 0;
  std::deque<State> work_streams_;
  std::vector<cu::Event> spare_;
};

}  // namespace rr
