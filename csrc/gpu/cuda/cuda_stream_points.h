// Points of callers' streams: events that are recorded there and asked by our threads.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "gpu/cuda/cuda_context.h"

namespace rr {

// From any thread. Outlives its points.
class CudaStreamPoints {
 public:
  explicit CudaStreamPoints(const CudaContext& context) : context_(context) {}
  ~CudaStreamPoints();
  CudaStreamPoints(const CudaStreamPoints&) = delete;
  CudaStreamPoints& operator=(const CudaStreamPoints&) = delete;

  // With the context current.
  std::unique_ptr<StreamPoint> record(cu::Stream stream);

 private:
  class Point;
  cu::Event take();
  void give_back(cu::Event event);

  const CudaContext& context_;
  std::mutex mutex_;
  std::vector<cu::Event> spare_;
};

}  // namespace rr
