#include "gpu/cuda/cuda_work_streams.h"

namespace rr {

CudaWorkStreams::CudaWorkStreams(const CudaContext& context) : context_(context) {
  int least = 0;
  // Others wait for what we do: ahead of the caller's own kernels where there is room for one of the two.
  RR_CUDA(context_, ctx_get_stream_priority_range, &least, &priority_);
  try {
    while (work_streams_.size() < kWorkStreams) add();
  } catch (const Error&) {
    destroy();
    throw;
  }
}

CudaWorkStreams::~CudaWorkStreams() {
  const auto current = context_.current_for_freeing();
  destroy();
}

// What is still under way goes on: the driver frees streams and events behind it.
void CudaWorkStreams::destroy() noexcept {
  for (State& work_stream : work_streams_) {
    for (const cu::Event event : work_stream.events) RR_CUDA_FREE(context_, event_destroy, event);
    if (work_stream.stream != nullptr) RR_CUDA_FREE(context_, stream_destroy, work_stream.stream);
  }
  for (const cu::Event event : spare_) RR_CUDA_FREE(context_, event_destroy, event);
}

WorkStream CudaWorkStreams::add() {
  for (size_t i = kWorkStreams; i < work_streams_.size(); ++i) {
    if (!work_streams_[i].is_spare) continue;
    work_streams_[i].is_spare = false;
    return static_cast<WorkStream>(i);
  }
  State work_stream;
  // Nothing of ours is to wait for the legacy stream.
  RR_CUDA(context_, stream_create_with_priority, &work_stream.stream, cu::kStreamNonBlocking, priority_);
  work_streams_.push_back(work_stream);
  return static_cast<WorkStream>(work_streams_.size() - 1);
}

Mark CudaWorkStreams::mark(WorkStream work_stream) {
  State& state = work_stream_of(work_stream);
  // Also where nobody asks for a work stream's marks there are no more events than work is under way.
  if (spare_.empty() || state.events.size() >= 8) take_back(state);
  if (spare_.empty()) {
    cu::Event made = nullptr;
    RR_CUDA(context_, event_create, &made, cu::kEventDisableTiming);
    spare_.push_back(made);
  }
  RR_CUDA(context_, event_record, spare_.back(), state.stream);
  state.events.push_back(spare_.back());
  spare_.pop_back();
  return {work_stream, ++state.made};
}

cu::Event CudaWorkStreams::event_of(const Mark& mark) const {
  const State& state = work_stream_of(mark.work_stream);
  if (mark.number > state.made) throw Error("a mark of another device");
  return state.events[static_cast<size_t>(mark.number - state.passed - 1)];
}

bool CudaWorkStreams::is_over(cu::Event event) {
  const auto result = context_.driver().event_query(event);
  if (result == cu::kNotReady) return false;
  context_.check(result, cu::symbols::event_query);
  return true;
}

void CudaWorkStreams::take_back(State& work_stream) {
  for (; !work_stream.events.empty() && is_over(work_stream.events.front()); ++work_stream.passed) {
    spare_.push_back(work_stream.events.front());
    work_stream.events.pop_front();
  }
}

void CudaWorkStreams::follow(WorkStream work_stream, const Mark& mark) {
  // A work stream is in order as it is.
  if (work_stream == mark.work_stream || seen_passed(mark)) return;
  RR_CUDA(context_, stream_wait_event, stream(work_stream), event_of(mark), 0);
}

bool CudaWorkStreams::passed(const Mark& mark) {
  if (seen_passed(mark)) return true;
  if (!is_over(event_of(mark))) return false;
  // So has everything before it. An event that others still wait for may be recorded anew: they wait for what it stood
  // for when they were told to.
  State& state = work_stream_of(mark.work_stream);
  for (; state.passed < mark.number; ++state.passed) {
    spare_.push_back(state.events.front());
    state.events.pop_front();
  }
  return true;
}

bool CudaWorkStreams::passes_all() {
  bool all = true;
  for (size_t work_stream = 0; work_stream < work_streams_.size(); ++work_stream) {
    const WorkStream which = static_cast<WorkStream>(work_stream);
    all = passed({which, work_stream_of(which).made}) && all;
  }
  return all;
}

bool CudaWorkStreams::is_busy() const {
  for (const State& work_stream : work_streams_) {
    if (work_stream.passed != work_stream.made) return true;
  }
  return false;
}

}  // namespace rr
