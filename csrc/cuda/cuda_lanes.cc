#include "cuda/cuda_lanes.h"

namespace rr {

CudaLanes::CudaLanes(const CudaContext& context) : context_(context) {
  int least = 0;
  // Others wait for what we do: ahead of the caller's own kernels where there is room for one of the two.
  RR_CUDA(context_, ctx_get_stream_priority_range, &least, &priority_);
  try {
    while (lanes_.size() < kLanes) add();
  } catch (const Error&) {
    destroy();
    throw;
  }
}

CudaLanes::~CudaLanes() {
  const auto current = context_.current_for_freeing();
  destroy();
}

// What is still under way goes on: the driver frees streams and events behind it.
void CudaLanes::destroy() noexcept {
  for (State& lane : lanes_) {
    for (const cu::Event event : lane.events) RR_CUDA_FREE(context_, event_destroy, event);
    if (lane.stream != nullptr) RR_CUDA_FREE(context_, stream_destroy, lane.stream);
  }
  for (const cu::Event event : spare_) RR_CUDA_FREE(context_, event_destroy, event);
}

Lane CudaLanes::add() {
  for (size_t i = kLanes; i < lanes_.size(); ++i) {
    if (!lanes_[i].is_spare) continue;
    lanes_[i].is_spare = false;
    return static_cast<Lane>(i);
  }
  State lane;
  // Nothing of ours is to wait for the legacy stream.
  RR_CUDA(context_, stream_create_with_priority, &lane.stream, cu::kStreamNonBlocking, priority_);
  lanes_.push_back(lane);
  return static_cast<Lane>(lanes_.size() - 1);
}

Mark CudaLanes::mark(Lane lane) {
  State& state = lane_of(lane);
  // Also where nobody asks for a lane's marks there are no more events than work is under way.
  if (spare_.empty() || state.events.size() >= 8) take_back(state);
  if (spare_.empty()) {
    cu::Event made = nullptr;
    RR_CUDA(context_, event_create, &made, cu::kEventDisableTiming);
    spare_.push_back(made);
  }
  RR_CUDA(context_, event_record, spare_.back(), state.stream);
  state.events.push_back(spare_.back());
  spare_.pop_back();
  return {lane, ++state.made};
}

cu::Event CudaLanes::event_of(const Mark& mark) const {
  const State& state = lane_of(mark.lane);
  if (mark.number > state.made) throw Error("a mark of another device");
  return state.events[static_cast<size_t>(mark.number - state.passed - 1)];
}

bool CudaLanes::is_over(cu::Event event) {
  const auto result = context_.driver().event_query(event);
  if (result == cu::kNotReady) return false;
  context_.check(result, cu::symbols::event_query);
  return true;
}

void CudaLanes::take_back(State& lane) {
  for (; !lane.events.empty() && is_over(lane.events.front()); ++lane.passed) {
    spare_.push_back(lane.events.front());
    lane.events.pop_front();
  }
}

void CudaLanes::follow(Lane lane, const Mark& mark) {
  // A lane is in order as it is.
  if (lane == mark.lane || seen_passed(mark)) return;
  RR_CUDA(context_, stream_wait_event, stream(lane), event_of(mark), 0);
}

bool CudaLanes::passed(const Mark& mark) {
  if (seen_passed(mark)) return true;
  if (!is_over(event_of(mark))) return false;
  // So has everything before it. An event that others still wait for may be recorded anew: they wait for what it stood
  // for when they were told to.
  State& state = lane_of(mark.lane);
  for (; state.passed < mark.number; ++state.passed) {
    spare_.push_back(state.events.front());
    state.events.pop_front();
  }
  return true;
}

bool CudaLanes::passes_all() {
  bool all = true;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const Lane which = static_cast<Lane>(lane);
    all = passed({which, lane_of(which).made}) && all;
  }
  return all;
}

bool CudaLanes::is_busy() const {
  for (const State& lane : lanes_) {
    if (lane.passed != lane.made) return true;
  }
  return false;
}

}  // namespace rr
