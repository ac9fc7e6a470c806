// The lanes of a GPU: streams of our own, and marks in them by events that are used again.
#pragma once

#include <deque>
#include <vector>

#include "cuda/cuda_context.h"

namespace rr {

// One thread at a time, with the context current.
class CudaLanes {
 public:
  explicit CudaLanes(const CudaContext& context);
  ~CudaLanes();
  CudaLanes(const CudaLanes&) = delete;
  CudaLanes& operator=(const CudaLanes&) = delete;

  Lane add();
  void remove(Lane lane) { lane_of(lane).is_spare = true; }
  size_t count() const { return lanes_.size(); }
  cu::Stream stream(Lane lane) const { return lane_of(lane).stream; }
  Mark mark(Lane lane);
  void follow(Lane lane, const Mark& mark);
  bool passed(const Mark& mark);
  bool passes_all();  // whether every mark that has been made has passed
  bool is_busy() const;
  // The number that the next mark of the lane will have: what has been issued up to now ends by then.
  Mark next(Lane lane) const { return {lane, lane_of(lane).made + 1}; }
  bool is_made(const Mark& mark) const { return mark.number <= lane_of(mark.lane).made; }
  bool seen_passed(const Mark& mark) const { return mark.number <= lane_of(mark.lane).passed; }

 private:
  struct State {
    cu::Stream stream = nullptr;
    uint64_t made = 0;
    uint64_t passed = 0;
    bool is_spare = false;
    std::deque<cu::Event> events;  // of the marks passed + 1 to made
  };
  State& lane_of(Lane lane) { return lanes_.at(static_cast<size_t>(lane)); }
  const State& lane_of(Lane lane) const { return lanes_.at(static_cast<size_t>(lane)); }
  cu::Event event_of(const Mark& mark) const;
  bool is_over(cu::Event event);
  void take_back(State& lane);  // events of marks that have passed, oldest first
  void destroy() noexcept;

  const CudaContext& context_;
  int priority_ = 0;
  std::deque<State> lanes_;
  std::vector<cu::Event> spare_;
};

}  // namespace rr
