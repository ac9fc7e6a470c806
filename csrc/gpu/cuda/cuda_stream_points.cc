#include "gpu/cuda/cuda_stream_points.h"

namespace rr {

class CudaStreamPoints::Point final : public StreamPoint {
 public:
  Point(CudaStreamPoints& all, cu::Event event) : all_(all), event_(event) {}
  ~Point() override { all_.give_back(event_); }

  cu::Event event() const { return event_; }
  bool passed() override {
    if (has_passed_) return true;
    const CudaContext::Current current(all_.context_);
    const auto result = all_.context_.driver().event_query(event_);
    if (result == cu::kNotReady) return false;
    all_.context_.check(result, cu::symbols::event_query);
    has_passed_ = true;
    return true;
  }

 private:
  CudaStreamPoints& all_;
  const cu::Event event_;
  bool has_passed_ = false;
};

CudaStreamPoints::~CudaStreamPoints() {
  const auto current = context_.current_for_freeing();
  for (const cu::Event event : spare_) RR_CUDA_FREE(context_, event_destroy, event);
}

std::unique_ptr<StreamPoint> CudaStreamPoints::record(cu::Stream stream) {
  auto point = std::make_unique<Point>(*this, take());
  RR_CUDA(context_, event_record, point->event(), stream);
  return point;
}

cu::Event CudaStreamPoints::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      const cu::Event event = spare_.back();
      spare_.pop_back();
      return event;
    }
  }
  cu::Event made = nullptr;
  RR_CUDA(context_, event_create, &made, cu::kEventDisableTiming);
  return made;
}

// An event that has not come to pass may be recorded anew: it then stands for the later moment alone.
void CudaStreamPoints::give_back(cu::Event event) {
  const std::lock_guard lock(mutex_);
  spare_.push_back(event);
}

}  // namespace rr
