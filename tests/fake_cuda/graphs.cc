// Captures and graphs.

#include "state.h"

using namespace rr;
using fake::issue;
using fake::kept;
using fake::Result;
using fake::stream_of;

namespace {

struct FakeGraph {
  std::shared_ptr<fake::Graph> captured;
};

}  // namespace

FAKE_API Result cuThreadExchangeStreamCaptureMode(int* mode) {
  FAKE_ENTER(__func__, fake::Needs::kInit);
  *mode = static_cast<int>(fake::exchange_capture_mode(static_cast<unsigned>(*mode)));
  return cu::kSuccess;
}

FAKE_API Result cuStreamBeginCapture_v2(cu::Stream handle, int mode) {
  FAKE_ENTER(__func__);
  const auto stream = stream_of(handle);
  if (stream == nullptr || reinterpret_cast<uintptr_t>(handle) <= 1) return cu::kStreamCaptureUnsupported;
  if (stream->capture() != nullptr) return cu::kInvalidValue;
  fake::begin_capture(stream, static_cast<unsigned>(mode));
  return cu::kSuccess;
}

FAKE_API Result cuStreamIsCapturing(cu::Stream handle, int* status) {
  FAKE_ENTER(__func__);
  const auto stream = stream_of(handle);
  if (stream == nullptr) return cu::kInvalidHandle;
  if (reinterpret_cast<uintptr_t>(handle) <= 1) {
    for (const auto& other : fake::streams_of(stream->context())) {
      if (other->is_blocking() && other->capture() != nullptr) return cu::kStreamCaptureImplicit;
    }
  }
  const auto graph = stream->capture();
  *status = static_cast<int>(graph == nullptr    ? cu::kCaptureStatusNone
                             : graph->is_invalid ? cu::kCaptureStatusInvalidated
                                                 : cu::kCaptureStatusActive);
  return cu::kSuccess;
}

FAKE_API Result cuStreamEndCapture(cu::Stream handle, void** graph) {
  FAKE_ENTER(__func__);
  const auto stream = stream_of(handle);
  if (stream == nullptr || stream->capture() == nullptr) return cu::kInvalidValue;
  const auto captured = fake::end_capture(stream);
  *graph = nullptr;
  if (captured->is_invalid) return cu::kStreamCaptureInvalidated;
  *graph = kept(FakeGraph{captured});
  return cu::kSuccess;
}

FAKE_API Result cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  FAKE_ENTER(__func__);
  *executable = graph;
  return cu::kSuccess;
}

FAKE_API Result cuGraphLaunch(void* executable, cu::Stream handle) {
  FAKE_ENTER(__func__);
  for (const auto& task : static_cast<const FakeGraph*>(executable)->captured->tasks) {
    if (const Result result = issue(handle, task); result != cu::kSuccess) return result;
  }
  return cu::kSuccess;
}

FAKE_API Result cuGraphExecDestroy(void*) {
  FAKE_ENTER(__func__);
  return cu::kSuccess;
}

FAKE_API Result cuGraphDestroy(void*) {
  FAKE_ENTER(__func__);
  return cu::kSuccess;
}
